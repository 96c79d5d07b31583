"""Reading and writing a slice whose start is known only when the model runs."""

from __future__ import annotations

from typing import Any

import torch

from ignite_ipu.emulator.errors import backend_error, python_error
from ignite_ipu.emulator.trace.active import active

_INTEGERS = (torch.int16, torch.int32, torch.int64)


def dynamic_slice(tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int) -> torch.Tensor:
    """Return every `step`-th of the elements `start` to `start + size - 1` along a dimension.

    On the device a slice that runs past the end goes on at the beginning; on the host it is Python's ordinary slice.

    Args:
        start: An integer scalar.
        size: A divisor of the dimension's length.

    Raises:
        Error: A type is wrong, or the slice cannot be compiled.
    """
    _check_types("dynamic_slice", tensor, dim, start, size)
    if not _is_int(step):
        raise python_error(f"dynamic_slice: Step must be an integer, got {step!r}.")
    trace = active()
    if trace is None:
        first = int(start)
        every = (slice(None),) * (dim % tensor.dim())
        return tensor[(*every, slice(first, first + size, step))]
    _check_extent("dynamic_slice", tensor, dim, size)
    length = tensor.shape[dim]
    if length % size:
        raise backend_error(
            f"dynamic_slice: the size of the slice ({size}) must be a factor of the slicing dimension ({length})."
        )
    if step < 1:
        raise backend_error(f"dynamic_slice: the step must be 1 or more, got {step}.")
    _check_scalar("dynamic_slice", trace.traced(start).meta)
    return trace.record(_slice, tensor, start, dim=dim, size=size, step=step)


def dynamic_update(input: torch.Tensor, src: torch.Tensor, dim: int, start: torch.Tensor, size: int) -> torch.Tensor:
    """Return a copy of `input` with `src` in place of the elements `start` to `start + size - 1` along a dimension.

    On the device an update that runs past the end goes on at the beginning; on the host it is `torch.slice_scatter`.

    Args:
        src: Like `input`, but `size` long in the dimension.
        start: An integer scalar.

    Raises:
        Error: A type is wrong, the tensors do not fit each other, or the update cannot be compiled.
    """
    _check_types("dynamic_update", input, dim, start, size)
    if not isinstance(src, torch.Tensor):
        raise python_error(f"dynamic_update must take a torch.tensor input as src, got {src!r}.")
    if input.dim() != src.dim():
        raise python_error(
            f"dynamic_update: input and src must have same dimensionality, got {input.dim()} and {src.dim()}."
        )
    if input.dtype != src.dtype:
        raise python_error(f"dynamic_update: input and src must have same dtype, got {input.dtype} and {src.dtype}.")
    trace = active()
    if trace is None:
        first = int(start)
        return torch.slice_scatter(input, src, dim, first, first + size)
    _check_extent("dynamic_update", input, dim, size)
    expected = list(input.shape)
    expected[dim] = size
    if list(src.shape) != expected or size > input.shape[dim]:
        raise backend_error(
            f"dynamic_update: src must have shape {tuple(expected)} to replace {size} elements of dimension {dim} "
            f"of a tensor of shape {tuple(input.shape)}, got {tuple(src.shape)}."
        )
    _check_scalar("dynamic_update", trace.traced(start).meta)
    return trace.record(_update, input, src, start, dim=dim, size=size)


def _slice(tensor: torch.Tensor, start: torch.Tensor, dim: int, size: int, step: int) -> torch.Tensor:
    return tensor.index_select(dim, _positions(tensor, start, dim, size, step))


def _update(tensor: torch.Tensor, src: torch.Tensor, start: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    return tensor.index_copy(dim, _positions(tensor, start, dim, size, 1), src)


def _positions(tensor: torch.Tensor, start: torch.Tensor, dim: int, size: int, step: int) -> torch.Tensor:
    offsets = torch.arange(0, size, step, device=tensor.device)
    return (offsets + start.reshape(()).to(torch.int64)) % tensor.shape[dim]


def _check_types(name: str, tensor: Any, dim: Any, start: Any, size: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise python_error(f"{name} must take a torch.tensor input, got {tensor!r}.")
    if not _is_int(dim):
        raise python_error(f"{name}: Dimension must be an integer, got {dim!r}.")
    if not isinstance(start, torch.Tensor):
        raise python_error(f"{name}: Slice start argument must be a torch.tensor, got {start!r}.")
    if start.dtype not in _INTEGERS:
        raise python_error(f"{name}: Slice start argument must be of an integer type, got {start.dtype}.")
    if not _is_int(size):
        raise python_error(f"{name}: Size must be an integer, got {size!r}.")


def _check_extent(name: str, tensor: torch.Tensor, dim: int, size: int) -> None:
    if not -tensor.dim() <= dim < tensor.dim():
        raise backend_error(
            f"{name}: Dimension {dim} is out of range for a tensor of shape {tuple(tensor.shape)}, whose dimensions "
            f"are {-tensor.dim()} to {tensor.dim() - 1}."
        )
    if size == 0:
        raise backend_error(f"{name}: the start and the end of a slice must be different, and the size is 0.")
    if size < 0:
        raise backend_error(f"{name}: a slice cannot have its end less than its start, and the size is {size}.")


def _check_scalar(name: str, start: torch.Tensor) -> None:
    if start.numel() != 1:
        raise backend_error(f"{name}: Slice start argument must be a scalar, got the shape {tuple(start.shape)}.")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
