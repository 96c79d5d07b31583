"""Tensors of wrapped models: reads without an access, which would download the newest weights first, and their classes.

The getters and setters are PyTorch's own, for use under `DisableTorchFunctionSubclass()`, which is entered
once for many tensors. Outside of it they access as everything else does. PopTorch gives the tensors of a model that it
wraps classes of its own, which are taken off and put on again here.
"""

from __future__ import annotations

import ctypes
import zlib
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ignite_ipu.torch_names.modules import BUFFERS, PARAMETERS, all_named_buffers, all_named_modules, all_parameters
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

# The base class, so that these stay the originals if `torch.Tensor.grad` is replaced.
_OF_TENSORS: Any = torch.Tensor.__base__
ORDINARY: FrozenSet[type] = frozenset([torch.Tensor, nn.Parameter])
"""Classes of tensors that no wrapped model has."""

ACCESS = "_ignite_ipu_access"
"""The attribute of other classes by which an access to their tensors is noted."""

GRADIENT: Any = _OF_TENSORS.grad
"""The attribute, as PyTorch's functions for it know it."""

gradient_of: Callable[[torch.Tensor], Optional[torch.Tensor]] = GRADIENT.__get__
set_gradient: Callable[[torch.Tensor, Optional[torch.Tensor]], None] = GRADIENT.__set__
requires_grad: Callable[[torch.Tensor], bool] = _OF_TENSORS.requires_grad.__get__
set_requires_grad: Callable[[torch.Tensor, bool], None] = _OF_TENSORS.requires_grad.__set__
shape_of: Callable[[torch.Tensor], torch.Size] = _OF_TENSORS.shape.__get__
layout_of: Callable[[torch.Tensor], torch.layout] = _OF_TENSORS.layout.__get__
is_on_cpu: Callable[[torch.Tensor], bool] = _OF_TENSORS.is_cpu.__get__
size_of: Callable[[torch.Tensor], int] = _OF_TENSORS.numel
dtype_of: Callable[[torch.Tensor], torch.dtype] = _OF_TENSORS.dtype.__get__


# Elements up to which a copy of the bytes takes less time than a view of them.
_FEW = 2**14


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory as an ordinary tensor; this one needs nothing around it."""
    with DisableTorchFunctionSubclass():
        return torch.Tensor.detach(tensor)


def is_lazy(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has no shape yet, without a look that a wrapped one takes for an access."""
    return issubclass(type(tensor), (UninitializedParameter, UninitializedBuffer))


def checksum_of(tensor: torch.Tensor) -> int:
    """Return a number that tensors of other values do not have, but by chance."""
    values = plain(tensor).contiguous()
    if values.numel() <= _FEW:
        return zlib.crc32(ctypes.string_at(values.data_ptr(), values.numel() * values.element_size()))
    return zlib.crc32(values.reshape(-1).view(torch.uint8).numpy().data)


def bring_newest(tensor: torch.Tensor) -> None:
    """Bring the newest values of a tensor to the host, and those of all tensors of its class.

    For reads through which code gets no memory of them: those under `DisableTorchFunctionSubclass()` that follow.
    """
    access = getattr(type(tensor), ACCESS, None)
    if access is not None:
        access(True, hands_out=False)
    elif type(tensor) not in ORDINARY:
        with torch.no_grad():
            tensor.sum()  # PopTorch downloads at any access


def unwrap_tensors(model: nn.Module) -> None:
    """Give the parameters and buffers of a module that PopTorch wrapped back the classes they had before.

    For use after a compilation that failed: PopTorch undoes a wrapping only when a compiled program is destroyed, and
    refuses to wrap a wrapped model again.
    """
    for tensor in _tensors(model):
        wrapped = type(tensor)
        if wrapped not in ORDINARY:
            object.__setattr__(tensor, "__class__", wrapped.__mro__[1])


def classes_of(model: nn.Module) -> List[type]:
    """Return the classes of a wrapped model's parameters and buffers, for `put_classes`."""
    return [type(tensor) for tensor in _tensors(model)]


def put_classes(model: nn.Module, classes: Sequence[type]) -> None:
    """Tie the parameters and buffers of a model to the executor again whose classes these are."""
    for tensor, tensor_class in zip(_tensors(model), classes):
        object.__setattr__(tensor, "__class__", tensor_class)


def _tensors(model: nn.Module) -> List[torch.Tensor]:
    return [*all_parameters(model), *[buffer for _, buffer in all_named_buffers(model)]]


def table_of(module: nn.Module, kind: str) -> Mapping[str, Any]:
    """Return the parameters, buffers or modules of a module, without the look that makes a wrapped model download."""
    own = module.__dict__
    # A traced module of TorchScript's finds its tables in another one.
    found: Mapping[str, Any] = own[kind] if kind in own else getattr(module, kind)
    return found


def named_tensors(model: nn.Module, *kinds: str) -> Dict[str, torch.Tensor]:
    """Return parameters and buffers by name, or one of these `kinds`, without the look that makes a model download."""
    return tensors_of(all_named_modules(model), *kinds)


def tensors_of(modules: Sequence[Tuple[str, nn.Module]], *kinds: str) -> Dict[str, torch.Tensor]:
    """Return the same of the modules in a model, which the caller has for more than this."""
    found: Dict[str, torch.Tensor] = {}
    for prefix, module in modules:
        for kind in kinds or (PARAMETERS, BUFFERS):
            for name, tensor in table_of(module, kind).items():
                if tensor is not None:
                    found[f"{prefix}.{name}" if prefix else name] = tensor
    return found
