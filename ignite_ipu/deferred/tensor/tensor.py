"""`DeferredTensor`: a tensor of a captured step, whose value exists once the step has run."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Container, Dict, FrozenSet, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import nn
from torch.overrides import enable_reentrant_dispatch

from ignite_ipu.capabilities import GRADIENTS
from ignite_ipu.deferred.events import OBSERVERS
from ignite_ipu.deferred.graph.operations import Operation, Value, name_of
from ignite_ipu.deferred.graph.owners import parameter_of
from ignite_ipu.deferred.graph.signatures import Signatures, changing_numbers, inferred_signature
from ignite_ipu.deferred.graph.structure import flatten, leaves_in, unflatten
from ignite_ipu.deferred.tensor.autograd import accumulate_to, asked_gradients
from ignite_ipu.deferred.tensor.deferred_values import (
    Deferred,
    all_values,
    as_leaf,
    awaited_values,
    deferred_values,
    resolved,
)
from ignite_ipu.deferred.tensor.device_gradient import ON_THE_HOST
from ignite_ipu.deferred.tensor.frames import is_argument_check, passes_argument_on, refuse_function, refuse_script
from ignite_ipu.deferred.tensor.functions import (
    DIFFERENTIABLE_READS,
    EXPOSING,
    METADATA,
    OPERATORS,
    READS,
    REFUSED,
    TENSOR_PROPERTIES,
    attribute_of,
    cast_type,
    written,
)
from ignite_ipu.deferred.tensor.in_place import diagonal_masked, recorded_as
from ignite_ipu.deferred.tensor.indices import ARRAYS, INDEXED, with_known_indices
from ignite_ipu.deferred.tensor.inputs import NORMALISATIONS, is_weight, refuse_statistics
from ignite_ipu.deferred.tensor.losses import RecordedNode, mark_loss
from ignite_ipu.deferred.tensor.reads import is_of_evaluations, read
from ignite_ipu.deferred.tensor.views import is_own_view, written_values
from ignite_ipu.deferred.tensor.weight_views import WeightMemory, viewed_weights
from ignite_ipu.deferred.tensor.without_graph import of_host, without_graph
from ignite_ipu.deferred.tensor.written_tensors import (
    WrittenTensor,
    answered,
    in_place_of_written,
    refuse_shared,
    shares_memory,
    write_back,
)
from ignite_ipu.errors import CaptureError
from ignite_ipu.operators.words import word_set
from ignite_ipu.program.refusal_frames import brief_refusals
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.tensors import (
    CALLS_OF_BACKWARD,
    COUNT_OF_WRITES,
    GRADIENT_ATTRIBUTES,
    DisableTorchFunctionSubclass,
    make_wrapper_subclass,
    memory_of,
)

_TWICE = GRADIENTS["torch.Tensor.backward(create_graph)"]
# The factor of torch.add and torch.sub, which has to be a Python number.
_ALPHA = "alpha"
_CPU = torch.device("cpu")
# Functions that set attributes of a tensor.
_NOT_WRITING = word_set("__set__ __delete__ requires_grad_")
# Functions that were recorded before, and types of numbers among their arguments that may change.
_RECORDED: Dict[Callable[..., Any], FrozenSet[type]] = {}


class DeferredTensor(Deferred):
    """A tensor whose shape, type and place in the step are known, and whose value comes with the step.

    Operations on it are recorded. Asking for its value gives the number when the step has run, runs the step when its
    loss has gone backward, and is an error before that.
    """

    @classmethod
    @brief_refusals
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        grad = torch.is_grad_enabled()
        if not grad:
            refuse_function(awaited_values, (args, kwargs), passes_argument_on(func, args))
        numbers: Optional[Container[type]] = _RECORDED.get(func)
        if numbers is not None:
            leaves: List[Any] = []
            key, values = [func, grad], args
            if kwargs:
                if _ALPHA in kwargs:
                    numbers = ()
                key += (len(args), *kwargs)
                values = (*args, *kwargs.values())
            signature = _SIGNATURES.look_up(key, values, leaves, numbers)
            if signature is not None:
                return deferred_results(Operation(signature, None, leaves, current_line(above=1)))
        if WrittenTensor in types:
            args, kwargs = in_place_of_written(args, kwargs or {})
        if WeightView in types:
            result = write_weights(func, args, kwargs or {})
            if result is not NotImplemented:
                return result
        with DisableTorchFunctionSubclass():
            return _call(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Sequence[type], args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Code in C++, such as a scripted function, does not pass through PyTorch's Python API. An argument that an
        # autograd.Function returns unchanged comes here, too.
        returned = not torch.is_grad_enabled() and passes_argument_on(func, args)
        refuse_function(awaited_values, (args, kwargs), returned)
        refuse_script()
        # Autograd is switched off here, and with it the flag for results that depend on weights.
        with enable_reentrant_dispatch():
            return _call(func, args, kwargs or {})

    def backward(
        self,
        gradient: Optional[torch.Tensor] = None,
        retain_graph: Optional[bool] = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Mark this as a loss of the step, which runs with `optimizer.step()`.

        With a `gradient` the loss is the sum of this times that.

        Raises:
            CaptureError: It is no scalar that depends on one model, or an argument cannot be honoured.
        """
        if create_graph:
            raise CaptureError(
                f"backward(create_graph=True) at {current_line()} asks for gradients that can be differentiated again: "
                f"{_TWICE.reason}. {ON_THE_HOST}"
            )
        if inputs is not None:
            accumulate_to(self, inputs, gradient, bool(retain_graph))
            return
        if gradient is not None:
            torch.mul(self, gradient).sum().backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
            return
        mark_loss(self.value, bool(retain_graph))
        for observer in OBSERVERS:
            observer.went_backward(self)

    @brief_refusals
    def item(self) -> Any:
        tensor = self.value.tensor
        return (read(self.value, "item()") if tensor is None else tensor).item()

    def __repr__(self, *, tensor_contents: Optional[str] = None) -> str:  # type: ignore[override]
        # Debuggers and error messages show objects at any time: this one never fails.
        if self.value.known:
            return repr(self.value.get())
        size, dtype = self.value.shape.size, self.value.shape.dtype
        return (
            f"DeferredTensor(size={size}, dtype={dtype}, known after optimizer.step(); to see a value now, call the "
            "model in evaluation mode under torch.no_grad())"
        )

    @brief_refusals
    def __str__(self) -> str:
        return str(read(self.value, "print"))

    @brief_refusals
    def __format__(self, spec: str) -> str:
        return format(read(self.value, "format"), spec)

    @brief_refusals
    def __reduce_ex__(self, protocol: Any) -> Any:
        plain = read(self.value, "saving it")
        # Hooks that the engine has put on it would go into the file.
        saved: Any = plain.detach().requires_grad_(plain.requires_grad)
        return saved.__reduce_ex__(protocol)

    @brief_refusals
    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return read(self.value, "a copy").clone()


class WeightView(DeferredTensor):
    """A view of a weight, which each use records anew: it has the values that the weight has then.

    A write into it, without gradients, is one into the weight.

    Attributes:
        memory: The memory that it shows.
    """

    memory: WeightMemory

    @property
    def value(self) -> Value:  # type: ignore[override]
        value = self.memory.record()
        value.handle = weakref.ref(self)
        return value


def write_weights(func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """Call a function that writes into views of weights, on the host; `NotImplemented` for all others."""
    name = getattr(func, "__name__", "")
    target = None if name in _NOT_WRITING else written(name, args, kwargs)
    views = [each for each in leaves_in(target) if isinstance(each, WeightView)]
    if not views:
        return NotImplemented
    initializes = getattr(func, "__module__", None) == nn.init.__name__  # without gradients
    if torch.is_grad_enabled() and not initializes and any(view.requires_grad for view in views):
        raise RuntimeError("a view of a leaf Variable that requires grad is being used in an in-place operation.")
    args, kwargs = resolved((args, kwargs), name_of(func), views)
    func(*args, **kwargs)
    return target


def deferred_results(operation: Operation) -> Any:
    """Return the results of an operation as the user gets them."""
    signature, tensor = operation.signature, None
    found: List[DeferredTensor] = []
    views = viewed_weights(operation) if operation.of_weights and signature.aliases else ()
    for value in operation.give():
        shape = value.shape
        memory = views[value.index] if views else None
        kind = DeferredTensor if memory is None else WeightView
        tensor = make_wrapper_subclass(kind, shape.size, strides=shape.stride, dtype=shape.dtype, device=_CPU)
        if memory is None:
            tensor.value = value
            value.handle = weakref.ref(tensor)
        else:
            tensor.memory = memory
        if not signature.single:
            found.append(tensor)
    return tensor if signature.single else unflatten(signature.result, found)


def _call(func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return _property(func, args[0])
    if name in ("__set__", "__delete__"):
        raise CaptureError(
            f"tensor.{attribute_of(func)} = ... at {current_line()} cannot be recorded: the tensor is "
            "computed on the device. Make a new tensor instead."
        )
    if name in METADATA:
        return func(*args, **kwargs)
    if name == "__bool__" and not args[0].value.known and is_argument_check():
        # PopTorch leaves these checks out of a trace.
        return True
    if name in READS or (name == "where" and len(args) + len(kwargs) == 1):
        if name in EXPOSING:
            read(args[0].value, f"{name_of(func)}()")
            args[0].value.keep_for_readers()
        differentiated = name in DIFFERENTIABLE_READS and _needs_gradients(awaited_values((args, kwargs)))
        selected = _selected(*args, **kwargs) if differentiated and name == "masked_select" else None
        if selected is not None:
            return selected
        result = func(*resolved(args, f"{name_of(func)}()"), **resolved(kwargs, f"{name_of(func)}()"))
        return of_host(name_of(func), result) if differentiated else result
    if name in ("cpu", "pin_memory") and not args[0].value.known:
        return args[0]
    if name in ("cuda", "xpu", "npu"):
        raise CaptureError(f".{name}() at {current_line()}: the step runs on an IPU. Remove the call.")
    if name == "new" and not deferred_values((args[1:], kwargs)):  # which has no values, or those that are given
        return torch.empty(0, dtype=args[0].dtype).new(*args[1:], **kwargs)
    if name == "resize_as_" and not isinstance(args[0], DeferredTensor):
        return args[0].resize_(args[1].shape)
    if name in REFUSED and not (name == "requires_grad_" and (args[1:] or (True,))[0]):
        raise CaptureError(f"{name}() at {current_line()} cannot be recorded: {REFUSED[name]}.")
    if name == "backward":
        _backward(*args, **kwargs)
        return None
    if name in CALLS_OF_BACKWARD:
        return asked_gradients(*args, **kwargs)
    if name == "__iter__":
        return iter(_record(torch.Tensor.unbind, (args[0], 0), {}))
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
    return _record(func, args, kwargs)


def _selected(input: Any, mask: Any) -> Any:
    """Return the elements that a mask of the host selects, recorded; None where the device computes the mask."""
    if isinstance(mask, DeferredTensor) and not mask.value.known:
        return None
    size = np.broadcast_shapes(input.shape, mask.shape)
    expanded = _record(torch.Tensor.expand, (input, size), {})
    return _record(torch.Tensor.__getitem__, (expanded, mask.expand(size)), {})


def _backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
    """Act as `torch.autograd.backward`: each tensor goes backward."""
    if grad_tensors is not None:
        raise CaptureError(
            "torch.autograd.backward(grad_tensors=...) cannot be honoured: losses are scalars. Leave it out."
        )
    for tensor in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
        if not isinstance(tensor, DeferredTensor):
            raise CaptureError("torch.autograd.backward was given a tensor of the captured step and one of the host.")
        tensor.backward(*args[1:], **kwargs)


def _property(func: Callable[..., Any], tensor: DeferredTensor) -> Any:
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
        return _record(torch.Tensor.detach, (tensor,), {})
    if name in TENSOR_PROPERTIES:
        return _record(getattr, (tensor, name), {})
    return func(read(tensor.value, f"its attribute {name}"))


def _record(func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any], in_place: bool = False) -> Any:
    apart: Optional[str] = None
    try:
        found = recorded(func, args, kwargs)
    except CaptureError as error:
        values = all_values((args, kwargs))
        if not all(_is_of_weights(value) or is_of_evaluations(value) for value in values):
            raise
        if _needs_gradients([value for value in values if not value.operation.of_weights]):
            if in_place:
                raise
            apart = str(error)  # gradients would flow through values of models, of which the host has no graph
        found = NotImplemented
    if found is not NotImplemented:
        return found
    for leaf in leaves_in((args, kwargs)):
        owner = parameter_of(leaf)
        if owner is not None:
            owner[0].loop.show_weights(())
    result = func(*resolved(args), **resolved(kwargs))
    _keep_for_readers(result, all_values((args, kwargs)))
    if apart is None:
        return result
    reason = f"A backward pass reached a result of {name_of(func)} at {current_line()}, which the host has computed."
    return without_graph(result, f"{reason} {apart}")


def _keep_for_readers(result: Any, values: Sequence[Value]) -> None:
    """Keep values for their readers if an ordinary tensor shares their memory, through which code may write."""
    sources = [(value, value.tensor) for value in values if value.tensor is not None and value.consumers]
    if sources:
        shared = {memory_of(each) for each in leaves_in(result)}
        for value, tensor in sources:
            if memory_of(tensor) in shared:
                value.keep_for_readers()


def recorded(func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """Return the recorded result of a function; `NotImplemented` if the host computes it."""
    name = getattr(func, "__name__", "")
    target = written(name, args, kwargs)
    if target is not None:
        return _record_in_place(func, name, target, args, kwargs)
    if "device" in kwargs:
        kwargs = {**kwargs, "device": None}
    leaves: List[Any] = []
    numbers = changing_numbers(name, args, kwargs)
    if numbers:
        args = tuple([value.item() if isinstance(value, np.number) else value for value in args])

    others = ARRAYS if name in INDEXED else numbers

    def is_leaf(value: Any) -> bool:
        return isinstance(value, torch.Tensor) or type(value) in others

    structure = flatten((args, kwargs), leaves, is_leaf)
    if others is ARRAYS and len(leaves) > 1:
        args, leaves = with_known_indices(name, args, _on_host), []
        structure = flatten((args, kwargs), leaves, is_leaf)
    line = current_line()
    values = [leaf.value for leaf in leaves if isinstance(leaf, DeferredTensor)]
    if all(value.available for value in values):
        live = any(value.live or (value.shape.requires_grad and not value.known) for value in values)
        if not (torch.is_grad_enabled() and (live or any(map(is_weight, leaves)))):
            return NotImplemented
        shapes = inferred_signature(func, structure, [as_leaf(leaf, line) for leaf in leaves], True, line).shapes
        if not any(shape.requires_grad for shape in shapes):
            return NotImplemented
    if name in NORMALISATIONS:
        refuse_statistics(func, name, args, kwargs, line)
    leaves = [as_leaf(leaf, line) for leaf in leaves]
    grad = torch.is_grad_enabled()
    signature = inferred_signature(func, structure, leaves, grad, line)
    start = [func, grad, len(args), *kwargs] if kwargs else [func, grad]
    _SIGNATURES.learn(start, (*args, *kwargs.values()), numbers, signature)
    _RECORDED[func] = _RECORDED.get(func, numbers) | numbers
    return deferred_results(Operation(signature, None, leaves, line))


def _record_in_place(
    func: Callable[..., Any], name: str, target: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Any:
    """Record `x += y` as `x = x + y`, which is the same as long as nothing else shares the memory of x."""
    value = target.value if isinstance(target, DeferredTensor) else None
    late = deferred_values((args, kwargs))
    if all(each.available for each in late) and not _needs_gradients(late):
        if value is not None and not value.known:
            value.take(read(value, name_of(func)))
        if not _is_awaited(target):
            if value is not None:
                value.keep_for_readers()
            return func(*resolved(args), **resolved(kwargs))
    if name == "requires_grad_" and value is not None and value.shape.requires_grad:
        return target
    plain, line, ordinary = recorded_as(name, target, value), current_line(), value is None
    if ordinary and name not in OPERATORS and not _needs_gradients(late) and all(map(_is_of_weights, late)):
        return NotImplemented
    if name == "__setitem__" and value is not None and is_own_view(args[2], value, args[1]):
        return None
    memory = target if ordinary else target.origin
    if memory is not None and _needs_gradients(late):
        refuse_shared(memory, name)
    elif memory is not None and shares_memory(memory, name):
        # The others are to have the values at once, and there is no way to let them wait.
        if value is not None and not value.known:
            value.take(read(value, name_of(func)))
        return func(*resolved(args, name_of(func)), **resolved(kwargs, name_of(func)))
    if name == "fill_diagonal_":
        args, kwargs = diagonal_masked(*args, **kwargs), {}
    result = _record(plain, args, kwargs, in_place=True)
    if not isinstance(result, DeferredTensor):  # the host has computed it, with gradients of its own
        if not ordinary and not _is_awaited(target):
            target.value.take(result)
        return result
    if ordinary:
        # The name that `total += loss` binds gets the result, and the tensor it named before stands for it.
        result.origin = target
        write_back(result.value, target, result)
        return result
    if tuple(result.shape) != tuple(target.shape) or result.dtype != target.dtype:
        raise CaptureError(
            f"{name_of(func)} at {line} works in place on a tensor whose shape or type it would change. Write "
            "x = x + y instead of x += y, and copy = x.clone(); copy[...] = y instead of x[...] = y."
        )
    for tensor, now in written_values(target.value, result.value, line):
        _stand_for(tensor, now)
    return target


def _stand_for(tensor: Any, value: Value) -> None:
    """Let a tensor that the user holds stand for a new value from here on."""
    tensor.value.handle = lambda: None
    tensor.value = value
    value.handle = weakref.ref(tensor)
    if tensor.origin is not None:
        write_back(value, tensor.origin, tensor)


def _needs_gradients(values: Sequence[Value]) -> bool:
    return torch.is_grad_enabled() and any(value.shape.requires_grad for value in values)


def _is_of_weights(value: Value) -> bool:
    return value.known or value.operation.of_weights


def _is_awaited(target: Any) -> bool:
    """Return whether something was recorded of a known value that comes from weights; a loss may not be from now on."""
    if not (isinstance(target, DeferredTensor) and target.value.live):
        return False
    if any(not each.done for each in target.value.readers()):
        return True
    target.value.operation.problem = f"it was written in place at {current_line()}"
    return False


def _on_host(tensor: torch.Tensor) -> Optional[torch.Tensor]:
    """Return the value of a tensor that the host has and no captured model, None for others."""
    tensor = answered(tensor)
    if parameter_of(tensor) is not None or (isinstance(tensor, DeferredTensor) and not tensor.value.known):
        return None
    return read(tensor.value, "an index") if isinstance(tensor, DeferredTensor) else tensor


_SIGNATURES = Signatures(DeferredTensor, WeightView)
