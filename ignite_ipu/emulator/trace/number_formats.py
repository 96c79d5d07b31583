"""Number formats of the device: it has no 64-bit floats, and a program keeps the default type that it was traced with.

Integers of 64 bits stay what they are inside a program, because PyTorch's kernels take no others as indices.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Iterator

import torch

from ignite_ipu.emulator.trace.call_sites import name_of
from ignite_ipu.emulator.values.nested import leaves, map_leaves

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
    return _around(kernel, lambda *args, **kwargs: narrowed(kernel(*args, **kwargs)))


def named(kind: Any) -> Any:
    """Return the dtype that one of PyTorch's tensor types, or its name, stands for; anything else as it is.

    On a host, `torch.FloatTensor` says where the values are as well, which a trace knows better.
    """
    if isinstance(kind, str):
        found = getattr(torch, kind.split(".")[-1], None)
        return found.dtype if isinstance(found, _TENSOR_TYPE) else kind
    return kind.dtype if isinstance(kind, _TENSOR_TYPE) else kind


def default_of_trace() -> torch.dtype:
    """Return the type that factories give on the device by default: the host's of now, narrowed."""
    return narrow(torch.get_default_dtype())


def by_default(dtype: torch.dtype) -> ContextManager[None]:
    """Return a context manager in which `dtype` is PyTorch's default type.

    The default is the whole process's, so that it is left alone where it is `dtype` already.
    """
    return contextlib.nullcontext() if torch.get_default_dtype() is dtype else _changed(dtype)


def with_default(kernel: Kernel, dtype: torch.dtype) -> Kernel:
    """Return a kernel that runs with `dtype` as PyTorch's default type."""

    def kernel_with_default(*args: Any, **kwargs: Any) -> Any:
        with by_default(dtype):
            return kernel(*args, **kwargs)

    return _around(kernel, kernel_with_default)


def _around(kernel: Kernel, function: Kernel) -> Kernel:
    function.__name__ = name_of(kernel)
    return function


@contextlib.contextmanager
def _changed(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
