"""Calls of PyTorch's functions with deferred tensors: answered from their facts, read, refused, or recorded."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import numpy as np
import torch

from ignite_ipu.deferred.graph.operations import name_of
from ignite_ipu.deferred.graph.owners import captured_at
from ignite_ipu.deferred.tensor.autograd import asked_gradients
from ignite_ipu.deferred.tensor.deferred_values import Deferred, all_values, awaited_values, deferred_values, resolved
from ignite_ipu.deferred.tensor.frames import is_argument_check
from ignite_ipu.deferred.tensor.functions import (
    DIFFERENTIABLE_READS,
    EXPOSING,
    METADATA,
    READS,
    REFUSED,
    TENSOR_PROPERTIES,
    attribute_of,
    cast_type,
)
from ignite_ipu.deferred.tensor.losses import RecordedNode
from ignite_ipu.deferred.tensor.reads import read
from ignite_ipu.deferred.tensor.recording import Recorder, needs_gradients, stand_for, write_at_once
from ignite_ipu.deferred.tensor.without_graph import of_host
from ignite_ipu.deferred.tensor.written_tensors import answered
from ignite_ipu.errors import CaptureError
from ignite_ipu.operators.words import word_set
from ignite_ipu.program.tensors.described import DRAWN
from ignite_ipu.program.tensors.new_parameters import as_new_parameter, makes_parameter
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.tensors import CALLS_OF_BACKWARD, COUNT_OF_WRITES, GRADIENT_ATTRIBUTES

_OF_NEW_PARAMETERS = word_set("detach requires_grad_")


def call(recorder: Recorder, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """Return the result of a function whose arguments hold deferred tensors.

    Raises:
        CaptureError: It can be neither recorded nor called on the host.
    """
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return _property(recorder, func, args[0])
    if name in ("__set__", "__delete__"):
        return _set_attribute(func, *args)
    if name in METADATA or (name == "type" and len(args) + len(kwargs) == 1):
        return func(*args, **kwargs)
    if name in _OF_NEW_PARAMETERS and makes_parameter():
        return _new_parameter(func, *args)
    if name == "__bool__" and not args[0].value.known and is_argument_check():
        # PopTorch leaves these checks out of a trace.
        return True
    if name in READS or (name == "where" and len(args) + len(kwargs) == 1):
        if name in EXPOSING:
            read(args[0].value, f"{name_of(func)}()")
            args[0].value.keep_for_readers()
        differentiated = name in DIFFERENTIABLE_READS and needs_gradients(awaited_values((args, kwargs)))
        if differentiated and name == "masked_select":
            return _selected(recorder, *args, **kwargs)
        result = func(*resolved(args, f"{name_of(func)}()"), **resolved(kwargs, f"{name_of(func)}()"))
        return of_host(name_of(func), result) if differentiated else result
    if name in ("cpu", "pin_memory") and not args[0].value.known:
        return args[0]
    if name in ("cuda", "xpu", "npu"):
        raise CaptureError(f".{name}() at {current_line()}: the step runs on an IPU. Remove the call.")
    if name in ("new", "new_tensor") and not deferred_values((args[1:], kwargs)):  # of no values, or of those given
        return func(torch.empty(0, dtype=args[0].dtype), *args[1:], **kwargs)
    if name in DRAWN and isinstance(args[0], Deferred):  # by the host, as torch.randn(output.shape) is
        return func(args[0].value.shape.empty(), *args[1:], **kwargs)
    if name == "resize_as_" and not isinstance(args[0], Deferred):
        return args[0].resize_(args[1].shape)
    requires = (*args[1:], *kwargs.values(), True)[0] if name == "requires_grad_" else None
    if requires is not None and requires == args[0].value.shape.requires_grad:
        return args[0]
    if name in REFUSED and not requires:
        raise CaptureError(f"{name}() at {current_line()} cannot be recorded: {REFUSED[name]}.")
    if name == "backward":
        if func is torch.Tensor.backward:
            args[0].backward(*args[1:], **kwargs)
        else:
            _backward(*args, **kwargs)
        return None
    if name in CALLS_OF_BACKWARD:
        return asked_gradients(*args, **kwargs)
    if name == "broadcast_tensors":
        size = np.broadcast_shapes(*[each.shape for each in args])
        return tuple([_expanded(recorder, each, size) for each in args])
    if name == "detach_":
        return _detached(recorder, args[0])
    if name == "__iter__":
        return iter(recorder.record(torch.Tensor.unbind, (args[0], 0), {}))
    if name == "type" and (args[1:] or kwargs):
        wanted = (*args[1:], *kwargs.values())[0]
        wanted = getattr(torch, wanted.rpartition(".")[2]) if isinstance(wanted, str) else wanted
        name, args, kwargs = "to", (args[0], getattr(wanted, "dtype", wanted)), {}  # a class of tensors has a type
    if name == "to_dense":  # as it is already
        name, kwargs = "to", {"dtype": kwargs["dtype"]} if kwargs.get("dtype") else {}
    if name == "to":
        dtype = cast_type(args, kwargs)
        if dtype is None:
            return args[0]
        args, kwargs = (args[0], dtype), {}
    return recorder.record(func, args, kwargs)


def _set_attribute(func: Callable[..., Any], tensor: torch.Tensor, *given: Any) -> None:
    """Set or delete an attribute of a tensor of the host, such as `parameter.data`, whose value is read for that."""
    if isinstance(tensor, Deferred):
        if attribute_of(func) == "requires_grad" and given == (tensor.value.shape.requires_grad,):
            return
        raise CaptureError(
            f"tensor.{attribute_of(func)} = ... at {current_line()} cannot be recorded: the tensor is "
            "computed on the device. Make a new tensor instead."
        )
    values = resolved(given, f"tensor.{attribute_of(func)} = ...")
    for each in all_values(given):
        each.keep_for_readers()
    held = [(tensor, {} if attribute_of(func) in GRADIENT_ATTRIBUTES else captured_at(tensor))]
    write_at_once(func, held, (tensor, *values), {})


def _detached(recorder: Recorder, tensor: Any) -> Any:
    """Let a tensor stand for its value without gradients, as `detach_()` does."""
    if not tensor.value.shape.requires_grad:
        return tensor
    detached = recorder.record(torch.Tensor.detach, (tensor,), {})
    if not isinstance(detached, Deferred):
        raise CaptureError(
            f"detach_() at {current_line()} changes a tensor whose value is known, and through which gradients may "
            "flow yet. Write x = x.detach()."
        )
    stand_for(tensor, detached.value)
    return tensor


def _new_parameter(func: Callable[..., Any], tensor: Any, *args: Any) -> Any:
    """Return what `nn.Parameter(tensor)` asks for: a parameter of the value; of a view, in the memory of the weight."""
    views = [tensor] if "memory" in tensor.__dict__ else []
    if views or "value" in tensor.__dict__:
        (values,) = resolved((tensor,), "nn.Parameter()", views)
        if not views:
            tensor.value.keep_for_readers()
        tensor = as_new_parameter(values.detach(), type(tensor))
    return tensor if func is torch.Tensor.detach else func(tensor, *args)


def _selected(recorder: Recorder, input: Any, mask: Any) -> Any:
    """Return the elements that a mask selects, recorded."""
    size = np.broadcast_shapes(input.shape, mask.shape)
    whole = tuple([_expanded(recorder, each, size) for each in (input, mask)])
    return recorder.record(torch.Tensor.__getitem__, whole, {})


def _expanded(recorder: Recorder, tensor: Any, size: Sequence[int]) -> Any:
    given = answered(tensor)
    return (
        recorder.record(torch.Tensor.expand, (given, size), {}) if isinstance(given, Deferred) else given.expand(size)
    )


def _backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: Optional[bool] = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    """Act as `torch.autograd.backward`: several tensors go backward as one loss, their sum."""
    given = grad_tensors if grad_variables is None else grad_variables
    losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    gradients = [given] if given is None or isinstance(given, torch.Tensor) else list(given)
    if given is None:
        gradients *= len(losses)
    if not all(isinstance(loss, Deferred) for loss in losses):
        raise CaptureError("torch.autograd.backward was given a tensor of the captured step and one of the host.")
    if len(gradients) != len(losses):
        raise RuntimeError(f"got {len(losses)} tensors and {len(gradients)} gradients")
    loss, gradient = losses[0], gradients[0]
    if len(losses) > 1:
        with torch.enable_grad():
            pairs = zip(losses, gradients)
            loss = sum(each.reshape(()) if factor is None else (each * factor).sum() for each, factor in pairs)
        gradient = None
    loss.backward(gradient, retain_graph, create_graph, inputs)


def _property(recorder: Recorder, func: Callable[..., Any], tensor: Deferred) -> Any:
    name = attribute_of(func)
    if name in ("requires_grad", "is_leaf"):
        return tensor.value.shape.requires_grad is (name == "requires_grad")
    if name in METADATA:
        return func(tensor)
    if name == "grad_fn" and tensor.value.shape.requires_grad:
        return RecordedNode(tensor.value)
    if name in GRADIENT_ATTRIBUTES:
        return None
    if name == COUNT_OF_WRITES:
        return 0
    if name == "data":
        return recorder.record(torch.Tensor.detach, (tensor,), {})
    if name in TENSOR_PROPERTIES:
        return recorder.record(getattr, (tensor, name), {})
    return func(read(tensor.value, f"its attribute {name}"))
