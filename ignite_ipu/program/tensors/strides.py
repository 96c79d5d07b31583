"""Order of elements in memory: tensors that a device returns are contiguous, and PyTorch's results often are not.

It decides on the numbers that `torch.randn_like` and its relatives draw for each element.
"""

from __future__ import annotations

from typing import Sequence

import torch


def with_strides(tensor: torch.Tensor, size: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """Return the values of a tensor in the memory of one of `size` and `strides`.

    A tensor of another size, as of fewer rows, and one whose elements would share memory, gets the same order of
    dimensions; expanded dimensions stay expanded.
    """
    shape = tuple(tensor.shape)
    if len(size) != len(shape) or tensor.numel() < 2:
        return tensor
    wide = [place for place, count in enumerate(shape) if count > 1]
    if shape == tuple(size):
        if all(tensor.stride(place) == strides[place] for place in wide):
            return tensor
        if _are_apart(shape, strides):
            return torch.empty_strided(shape, tuple(strides), dtype=tensor.dtype).copy_(tensor)
    order = sorted(range(len(shape)), key=lambda place: -strides[place])
    expanded = [place for place in wide if strides[place] == 0]
    if [place for place in order if place in wide] == wide and not expanded:
        return tensor
    for place in expanded:
        tensor = tensor.narrow(place, 0, 1)
    back = [order.index(place) for place in range(len(shape))]
    return tensor.permute(order).contiguous().permute(back).expand(shape)


def _are_apart(size: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether all elements have memory of their own."""
    pairs = sorted((stride, count) for stride, count in zip(strides, size) if count > 1)
    reach = 0
    for stride, count in pairs:
        if stride <= reach:
            return False
        reach += stride * (count - 1)
    return True
