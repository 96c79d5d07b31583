"""Indices without dimensions whose values the device computes: each selects as a list of one index does."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch

MASKS = (torch.bool, torch.uint8)
"""Types of tensors that select by where they hold."""
_Place = Tuple[int, torch.Tensor]


def get_item(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """Return `tensor[index]`."""
    places, rest = _split(tensor, index)
    for dim, at in places:
        tensor = tensor[_one(dim, at)]
    return tensor[rest]


def get_first_item(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """Return a tensor in the shape of `tensor[index]`, whose memory is that of `tensor`."""
    return tensor[_split(tensor, index)[1]]


def with_item(tensor: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """Return a copy of a tensor into which `copy[index] = value` has written."""
    copy = tensor.clone()
    places, rest = _split(tensor, index)
    _write(copy, places, rest, value)
    return copy


def _write(tensor: torch.Tensor, places: Sequence[_Place], rest: Any, value: Any) -> None:
    if not places:
        tensor[rest] = value
        return
    where = _one(*places[0])
    part = tensor[where]
    _write(part, places[1:], rest, value)
    tensor[where] = part


def _one(dim: int, at: torch.Tensor) -> Tuple[Any, ...]:
    return (*[slice(None)] * dim, at.reshape(1))


def is_scalar(item: Any) -> bool:
    """Return whether an item of an index is a tensor without dimensions that selects one element of a dimension."""
    return isinstance(item, torch.Tensor) and not item.dim() and item.dtype not in MASKS


def _split(tensor: torch.Tensor, index: Any) -> Tuple[List[_Place], Tuple[Any, ...]]:
    """Return the scalars in an index with their dimensions, and the index with the number 0 for each."""
    items = index if type(index) is tuple else (index,)
    firsts = first_dimensions(items, list(map(dimensions_of, items)), tensor.dim())
    places = [(first, item) for first, item in zip(firsts, items) if is_scalar(item)]
    return places, tuple([0 if is_scalar(item) else item for item in items])


def first_dimensions(items: Sequence[Any], counts: Sequence[int], dims: int) -> List[int]:
    """Return the first of the dimensions that each item selects from; an ellipsis has those that `counts` leave."""
    found, first = [], 0
    for item, count in zip(items, counts):
        found.append(first)
        first += dims - sum(counts) if item is Ellipsis else count
    return found


def dimensions_of(item: Any) -> int:
    """Return how many dimensions of a tensor an item of an index selects from; 0 for an ellipsis."""
    if isinstance(item, torch.Tensor) and item.dtype in MASKS:
        return item.dim()
    return 0 if item is None or item is Ellipsis or isinstance(item, bool) else 1


get_item.__name__, with_item.__name__ = "getitem", "setitem"
BY_SCALARS: Dict[str, Callable[..., Any]] = {"__getitem__": get_item, "setitem": with_item}
"""Functions for those of these names, for indices with scalars of which the host has no values."""
