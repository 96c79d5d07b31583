"""Functions that are called with weights, which are recorded where gradients flow to them."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch

from ignite_ipu.deferred.graph.operations import USES
from ignite_ipu.deferred.graph.owners import CapturedLoop, ReplacedError, parameter_of
from ignite_ipu.deferred.graph.structure import leaves_in
from ignite_ipu.deferred.graph.uses import keep_weights
from ignite_ipu.deferred.tensor.deferred_values import all_values, resolved
from ignite_ipu.deferred.tensor.device_gradient import with_values
from ignite_ipu.deferred.tensor.functions import METADATA, READS, REFUSED, TENSOR_PROPERTIES, attribute_of, written
from ignite_ipu.deferred.tensor.tensor import RECORDER, DeferredTensor, write_weights
from ignite_ipu.errors import CaptureError
from ignite_ipu.operators.words import word_set
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

# Functions that the host applies to weights, also with gradients.
_WITH_WEIGHTS = word_set(
    "__get__ __set__ __delete__ backward grad _engine_run_backward clone to type type_as cpu cuda float double half "
    "bfloat16 contiguous pin_memory detach register_post_accumulate_grad_hook __iter__ __setstate__ as_subclass"
).union(METADATA, READS, REFUSED)
_FREEZES = ("requires_grad", "data")
_VALUES = ("data", "real", "imag")


def record_on_weights(func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """Return the result of a function of weights, recorded if gradients flow to them; `NotImplemented` for the host."""
    if EAGER.is_on:
        return NotImplemented
    name = getattr(func, "__name__", "")
    leaves = leaves_in((args, kwargs))
    values = all_values(leaves)
    if name == "__get__" and attribute_of(func) in TENSOR_PROPERTIES:
        func, args, name = getattr, (args[0], attribute_of(func)), ""
    target = written(name, args, kwargs)
    writes = target is not None
    if writes or name == "requires_grad_" or (name == "__set__" and attribute_of(func) in _FREEZES):
        changes = writes and _changes_values(func, name)
        for loop, tensors in _by_loop(leaves_in(target) if writes else leaves).items():
            loop.note_write(tensors if changes else ())
    if writes and USES:
        keep_weights([found[0].loop for found in map(parameter_of, leaves) if found is not None])
    if writes and values:
        result = write_weights(func, args, kwargs)
        if result is not NotImplemented:
            return result
    own = torch.is_grad_enabled() and name not in _WITH_WEIGHTS and not writes
    if values and (own or not all(value.known or value.operation.of_weights for value in values)):
        return DeferredTensor.__torch_function__(func, tuple(map(type, leaves)), args, kwargs)
    if values:
        return func(*resolved(args), **resolved(kwargs))
    if not own:
        return NotImplemented
    args, kwargs = with_values((args, kwargs))  # of gradients, from which no other gradient flows
    with DisableTorchFunctionSubclass():
        try:
            return RECORDER.recorded(func, args, kwargs)
        except ReplacedError:
            raise
        except CaptureError:  # its result is unknown without values
            return NotImplemented


def _changes_values(func: Callable[..., Any], name: str) -> bool:
    """Return whether a function changes values of a tensor or its memory: it may set a flag or the gradient alone."""
    return attribute_of(func) in _VALUES if name in ("__set__", "__delete__") else name != "requires_grad_"


def _by_loop(leaves: Sequence[Any]) -> Dict[CapturedLoop, List[torch.Tensor]]:
    """Return the captured loops that weights are of, each with these."""
    found: Dict[CapturedLoop, List[torch.Tensor]] = {}
    for leaf in leaves:
        owner = parameter_of(leaf)
        if owner is not None:
            found.setdefault(owner[0].loop, []).append(leaf)
    return found
