"""Number formats of the device: it has no 64-bit floats.

Integers of 64 bits stay what they are inside a program, because PyTorch's kernels take no others as indices.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from ignite_ipu.emulator.call_names import name_of
from ignite_ipu.emulator.nested import leaves, map_leaves

Kernel = Callable[..., Any]

_NARROW = {torch.float64: torch.float32, torch.complex128: torch.complex64}
_TENSOR_TYPE = type(torch.FloatTensor)


def narrow(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which the device holds values of `dtype`."""
    return _NARROW.get(dtype, dtype)


def is_wide(value: Any) -> bool:
    """Tell whether a tensor in `value` is of a type that the device does not have."""
    return any(isinstance(leaf, torch.Tensor) and leaf.dtype in _NARROW for leaf in leaves(value))


def narrowed(value: Any) -> Any:
    """Return `value` with its tensors in the types that the device has."""
    return map_leaves(value, lambda leaf: leaf.to(narrow(leaf.dtype)) if isinstance(leaf, torch.Tensor) else leaf)


def narrowing(kernel: Kernel) -> Kernel:
    """Return a kernel whose results are those of `kernel` in the types that the device has."""

    def narrow_kernel(*args: Any, **kwargs: Any) -> Any:
        return narrowed(kernel(*args, **kwargs))

    narrow_kernel.__name__ = name_of(kernel)
    return narrow_kernel


def named(kind: Any) -> Any:
    """Return the dtype that one of PyTorch's tensor types, or its name, stands for; anything else as it is.

    On a host, `torch.FloatTensor` says where the values are as well, which a trace knows better.
    """
    if isinstance(kind, str):
        found = getattr(torch, kind.split(".")[-1], None)
        return found.dtype if isinstance(found, _TENSOR_TYPE) else kind
    return kind.dtype if isinstance(kind, _TENSOR_TYPE) else kind
