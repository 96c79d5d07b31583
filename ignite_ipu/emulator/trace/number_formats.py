"""Number formats of the device: no 64-bit floats, floating-point exceptions, normalisations in float.

A program keeps the default type that it was traced with. Integers keep their 64 bits inside a program, because
PyTorch's kernels take no others as indices; forward reads their type as int32.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any, Callable, Iterable, Iterator, List, Optional

import torch
import torch.nn.functional as F

from ignite_ipu.emulator.errors import Error, backend_error
from ignite_ipu.emulator.trace.call_sites import name_of
from ignite_ipu.emulator.values.structures import leaves, map_leaves
from ignite_ipu.operators.words import words

Kernel = Callable[..., Any]

_NARROW = {torch.float64: torch.float32, torch.complex128: torch.complex64}
LACKED = (torch.bfloat16, torch.complex64, torch.complex128)
"""Types that the device lacks, and that are not narrowed to others that it has."""

_TENSOR_TYPE = type(torch.FloatTensor)
# They move or make values without computing: an infinity or NaN that they produce was asked for.
_NO_ARITHMETIC = frozenset(
    words(
        "fill_ full full_like masked_fill masked_fill_ where clone copy_ __setitem__ __getitem__ cat stack tensor "
        "getattr empty empty_like empty_strided new_empty new_full index_fill index_fill_ nan_to_num isnan isinf "
        "isfinite view reshape expand permute transpose contiguous detach nop ipu_print_tensor triu tril triu_ "
        "tril_ constant_pad_nd pad"
    )
)
_COMPARISONS = frozenset(
    words(
        "eq ne lt le gt ge __eq__ __ne__ __lt__ __le__ __gt__ __ge__ max min maximum minimum argmax argmin sort "
        "argsort topk clamp clamp_ amax amin"
    )
)
_STATISTICS = ("running_mean", "running_var")

NORMALISATIONS = (F.batch_norm, F.instance_norm, F.layer_norm, F.group_norm)


def narrow(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which the device holds values of `dtype`."""
    return _NARROW.get(dtype, dtype)


def as_read(answer: Any) -> Any:
    """Return a traced tensor's property as forward reads it: 64-bit integers are int32 on the device."""
    return torch.int32 if answer is torch.int64 else answer


def is_wide(value: Any) -> bool:
    """Return whether a tensor in `value` is of a type that the device does not have."""
    return any(isinstance(leaf, torch.Tensor) and leaf.dtype in _NARROW for leaf in leaves(value))


def narrowed(value: Any) -> Any:
    """Return `value` with its tensors in the types that the device has."""
    return map_leaves(value, lambda leaf: leaf.to(narrow(leaf.dtype)) if isinstance(leaf, torch.Tensor) else leaf)


def narrowing(kernel: Kernel) -> Kernel:
    """Return a kernel whose results are those of `kernel` in the types that the device has."""
    return _around(kernel, lambda *args, **kwargs: narrowed(kernel(*args, **kwargs)))


def named(kind: Any) -> Any:
    """Return the dtype that one of PyTorch's tensor types, or its name, stands for; anything else as it is.

    On a host, `torch.FloatTensor` also stands for a device; a trace ignores that part.
    """
    if isinstance(kind, str):
        found = getattr(torch, kind.split(".")[-1], None)
        return found.dtype if isinstance(found, _TENSOR_TYPE) else kind
    return kind.dtype if isinstance(kind, _TENSOR_TYPE) else kind


def default_of_trace() -> torch.dtype:
    """Return the default type of factories on the device: the host's current default, narrowed."""
    return narrow(torch.get_default_dtype())


@contextlib.contextmanager
def by_default(dtype: torch.dtype) -> Iterator[None]:
    """Let `dtype` be PyTorch's default type, the whole process's, in the `with` block; it is left alone if it is."""
    before = torch.get_default_dtype()
    if before is dtype:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def with_default(kernel: Kernel, dtype: torch.dtype) -> Kernel:
    """Return a kernel that runs with `dtype` as PyTorch's default type."""

    def kernel_with_default(*args: Any, **kwargs: Any) -> Any:
        with by_default(dtype):
            return kernel(*args, **kwargs)

    return _around(kernel, kernel_with_default)


def _around(kernel: Kernel, function: Kernel) -> Kernel:
    function.__name__ = name_of(kernel)
    return function


def watched(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return `kernel` with a check of its result, like that of the device's exception flags.

    An operator fails when its result holds an infinity or NaN that none of its operands held, or when it orders or
    compares NaN. Operators that only move values never fail.
    """
    if name in _NO_ARITHMETIC:
        return kernel

    def checked(*args: Any, **kwargs: Any) -> Any:
        operands = _floating((args, kwargs))
        had_nan, had_infinity = _any(torch.isnan, operands), _any(torch.isinf, operands)
        if had_nan and name in _COMPARISONS:
            raise _exception(f"{name} compares NaN")
        result = kernel(*args, **kwargs)
        produced = _floating(result)
        if not had_nan and _any(torch.isnan, produced):
            raise _exception(
                f"{name} made NaN of operands without NaN: an invalid operation (0/0, inf-inf, 0*inf, ...)"
            )
        if not had_infinity and not had_nan and _any(torch.isinf, produced):
            raise _exception(f"{name} made an infinity of finite operands: an overflow or a division by zero")
        return result

    checked.__name__ = name
    return checked


def in_strided_groups(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a group normalisation whose groups are every G-th channel, and not neighbours."""

    def group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        order = torch.arange(input.size(1), device=input.device).reshape(-1, num_groups).t().reshape(-1)
        weight, bias = (each if each is None else each[order] for each in (weight, bias))
        # Channel i of the result is where i stands in the order: at i // G within group i % G.
        back = torch.arange(input.size(1), device=input.device).reshape(num_groups, -1).t().reshape(-1)
        return kernel(input[:, order], num_groups, weight, bias, eps)[:, back]

    return functools.wraps(kernel)(group_norm)


def in_float(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a normalisation that computes in float32 and gives a result of its input's type.

    It serves operands of both types, half weights and float statistics for example, which PyTorch's kernels refuse.
    """
    signature = inspect.signature(kernel)

    def widened(*args: Any, **kwargs: Any) -> Any:
        named = signature.bind(*args, **kwargs).arguments
        operands = {
            name: value.float() if isinstance(value, torch.Tensor) and value.dtype is torch.float16 else value
            for name, value in named.items()
        }
        result = kernel(**operands)
        for name in _STATISTICS:
            if named.get(name) is not operands.get(name):
                named[name].copy_(operands[name])  # batch statistics were counted in
        return result.to(named["input"].dtype)

    return functools.wraps(kernel)(widened)


def check_finite(what: str, tensors: Iterable[Optional[torch.Tensor]]) -> None:
    """Refuse infinities and NaN, which the backward pass or the optimizer cannot have computed without an exception."""
    for tensor in tensors:
        if tensor is not None and not bool(torch.isfinite(tensor).all()):
            raise _exception(f"{what} holds an infinity or NaN")


def _exception(what: str) -> Error:
    return backend_error(
        f"Floating point exception: {what}. Options.Precision.enableFloatingPointExceptions(False) lets it pass.",
        type="poplar_application_runtime_error",
    )


def _any(test: Callable[[torch.Tensor], torch.Tensor], values: List[torch.Tensor]) -> bool:
    return any(bool(test(value.detach()).any()) for value in values)


def _floating(value: Any) -> List[torch.Tensor]:
    tensors = (leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor))
    return [tensor for tensor in tensors if tensor.is_floating_point() and not tensor.is_meta]
