"""Private names of tensors, their memory and gradients, and of random generators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

import torch

from ignite_ipu.torch_names.table import Name, find, word

__all__ = [
    "CALLS_OF_BACKWARD",
    "COUNT_OF_WRITES",
    "GRADIENT_ATTRIBUTES",
    "REBUILDERS",
    "DisableTorchFunction",
    "DisableTorchFunctionSubclass",
    "call_when_marked",
    "gradient_hooks_of",
    "lacks_gradients",
    "make_subclass",
    "make_wrapper_subclass",
    "mark_as_parameter",
    "memory_of",
    "usual_dispatch",
    "version_of",
]

if TYPE_CHECKING:
    from torch._C import DisableTorchFunction as DisableTorchFunction
    from torch._C import DisableTorchFunctionSubclass as DisableTorchFunctionSubclass
else:
    DisableTorchFunction = find(
        "torch._C.DisableTorchFunction", "2.0", "The emulator cannot look at tensors while it traces a model."
    )
    DisableTorchFunctionSubclass = find(
        "torch._C.DisableTorchFunctionSubclass",
        "2.0",
        "Weights cannot be read without a transfer from the device, so no model trains or evaluates.",
    )

make_wrapper_subclass: Callable[..., Any] = find(
    "torch.Tensor._make_wrapper_subclass",
    "2.0",
    "Neither the emulator nor captured loops can make tensors without values.",
)
make_subclass: Callable[..., Any] = find(
    "torch.Tensor._make_subclass", "2.0", "Parameters of models on a device cannot be watched for reads."
)

COUNT_OF_WRITES = "_version"
"""Attribute of a tensor: the number of writes to it."""
version_of: Callable[[torch.Tensor], int] = find(
    "torch.Tensor._version", "2.0", "Writes to tensors between device calls go unnoticed, so no model is compiled."
).__get__

_CDATA = Name(
    "torch.UntypedStorage._cdata", "2.0", "Tensors that share memory cannot be told apart, so no model is compiled."
)
_address: Callable[[Any], int] = _CDATA.get().__get__


def memory_of(tensor: torch.Tensor) -> int:
    """Return a number that tensors share which have the same memory, also where that has no address."""
    # The method of a weight on a device, found as its attribute, would count as a read of its memory by the loop.
    return _address(torch.Tensor.untyped_storage(tensor))


base_of: Callable[[torch.Tensor], Optional[torch.Tensor]] = find(
    "torch.Tensor._base", "2.0", "Captured loops cannot follow writes into views of tensors of the host."
).__get__

_holders: Callable[[int], Optional[int]] = find(
    "torch._C._storage_Use_Count",
    "2.1",
    "Loops cannot write values to come into slices of tensors of the host.",
    fallback=lambda address: None,
)


def sharers_of(tensor: torch.Tensor) -> Optional[int]:
    """Return the number of tensors and arrays that share the memory of a tensor, itself included; None if unknown."""
    storage = torch.Tensor.untyped_storage(tensor)  # it holds the memory, too
    holders = _holders(_address(storage))
    return None if holders is None else holders - 1


def _marks_count() -> bool:
    tensor = torch.empty(0)
    setattr(tensor, _MARK.last, True)
    return isinstance(tensor, torch.nn.Parameter)


_MARK = Name(
    "torch.nn.Parameter._is_param",
    "2.0",
    "In a trace of the emulator isinstance(weight, nn.Parameter) is False.",
    check=_marks_count,
)


def mark_as_parameter(tensor: torch.Tensor) -> None:
    """Let `isinstance(tensor, nn.Parameter)` hold for a tensor of another class."""
    setattr(tensor, _MARK.last, True)


def call_when_marked(tensor_class: Any, marked: Callable[[torch.Tensor], None]) -> None:
    """Have a function called with each tensor of a class that is marked as a parameter, in place of the mark."""
    setattr(tensor_class, _MARK.last, property(lambda tensor: False, lambda tensor, value: marked(tensor)))


_BACKWARD_HOOKS = Name(
    "torch.Tensor._backward_hooks", "2.0", "Hooks on gradients are not refused, and never run.", fallback=None
)
_POST_ACCUMULATE_HOOKS = Name(
    "torch.Tensor._post_accumulate_grad_hooks",
    "2.1",
    "Hooks after the accumulation of gradients are not refused, and never run.",
    fallback=None,
)
_HOOKS: List[Any] = [each for each in (_BACKWARD_HOOKS.get(), _POST_ACCUMULATE_HOOKS.get()) if each is not None]


def gradient_hooks_of(tensor: torch.Tensor) -> List[Dict[Any, Any]]:
    """Return the hooks on the gradient of a tensor: the dictionaries that have any."""
    return [hooks for hooks in (each.__get__(tensor) for each in _HOOKS) if hooks]


_LOST_ELEMENTS = "torch.tensor([loss]) is refused before the loss is known."
_AUTOGRAD = find("torch._C.DispatchKey.AutogradOther", "2.0", _LOST_ELEMENTS, fallback=None)
_is_excluded: Callable[[Any], bool] = find(
    "torch._C._dispatch_tls_is_dispatch_key_excluded", "2.0", _LOST_ELEMENTS, fallback=lambda key: False
)
_excluded: Callable[[], Any] = find(
    "torch._C._dispatch_tls_local_exclude_set", "2.0", _LOST_ELEMENTS, fallback=lambda: None
)
_included: Callable[[], Any] = find(
    "torch._C._dispatch_tls_local_include_set", "2.0", _LOST_ELEMENTS, fallback=lambda: None
)
_dispatch_by: Optional[Callable[[Any, Any], Any]] = find(
    "torch._C._ForceDispatchKeyGuard", "2.1", _LOST_ELEMENTS, fallback=None
)
_USUALLY_EXCLUDED = _excluded()


def lacks_gradients() -> bool:
    """Return whether PyTorch has gradients and tracing off, as `torch.tensor([...])` while it reads the elements."""
    return _AUTOGRAD is not None and _is_excluded(_AUTOGRAD)


def usual_dispatch() -> Any:
    """Return a context with gradients and tracing where `lacks_gradients` holds; None where PyTorch has no such."""
    return None if _dispatch_by is None else _dispatch_by(_included(), _USUALLY_EXCLUDED)


REBUILDERS: Tuple[str, ...] = tuple(
    Name(f"torch._utils.{name}", "2.0", "Checkpoints that PyTorch writes cannot be read.", fallback=None).path
    for name in ("_rebuild_tensor_v2", "_rebuild_parameter")
)
"""Functions that a checkpoint names, which make its tensors."""

GRADIENT_ATTRIBUTES: Tuple[str, ...] = (
    "grad",
    "grad_fn",
    word("torch.Tensor._grad", "2.0", "The gradient of a deferred tensor is refused by its public name alone."),
)
"""Attributes of a tensor that hold a gradient or its function."""

CALLS_OF_BACKWARD: Tuple[str, ...] = (
    "grad",
    word(
        "torch.autograd.graph._engine_run_backward",
        "2.13",
        "torch.autograd.grad in a captured loop is refused by its public name alone.",
    ),
)
"""Functions that compute gradients: `torch.autograd.grad`, and the one behind it."""
