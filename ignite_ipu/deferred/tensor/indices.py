"""Indices and bounds of recorded tensors that the host knows, with which the result has a known shape."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch

from ignite_ipu.deferred.graph.scalar_indices import BY_SCALARS, MASKS, dimensions_of, first_dimensions, is_scalar
from ignite_ipu.deferred.graph.structure import leaves_in, mapped
from ignite_ipu.deferred.tensor.deferred_values import Deferred
from ignite_ipu.operators.words import word_set

# Functions that take whole numbers as sizes, bounds and indices, or tensors without dimensions instead.
INDEXED = word_set("__getitem__ setitem narrow select view reshape expand repeat tile unflatten topk chunk split roll")
ARRAYS = frozenset([np.ndarray])
_ARRAYS_OR_TENSORS = (torch.Tensor, np.ndarray)
_ITEMS = ("__getitem__", "setitem")
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_INDEXED_WRITES = word_set(
    "index_put_ index_add_ index_copy_ index_fill_ index_reduce_ scatter_ scatter_add_ scatter_reduce_ put_"
)
_JOINING = word_set("cat concat concatenate hstack vstack row_stack")
_JOINED = ("tensors", "arrays")
# Returns the value of a tensor that the host has, None for others.
_OnHost = Callable[[torch.Tensor], Optional[torch.Tensor]]


def with_known_indices(name: str, args: Tuple[Any, ...], on_host: _OnHost, masked_by: _OnHost) -> Tuple[Any, ...]:
    """Return arguments of a function in `INDEXED` with the host's values of their indices, and with `masked_by` masks.

    Tensors without dimensions become whole numbers, boolean masks become where they hold, and arrays become tensors.
    Those that select one element stay tensors if the host has yet to compute them.
    """
    if name not in _ITEMS:
        return (args[0], *_with_numbers(args[1:], on_host))
    index = _without_masks(args[1], args[0].shape, masked_by)
    if type(index) is tuple:
        index = tuple([each if _is_awaited(each) else _with_numbers(each, on_host) for each in index])
    elif not _is_awaited(index):
        index = _with_numbers(index, on_host)
    return (args[0], index, *args[2:])


def fills_selection(args: Tuple[Any, ...]) -> bool:
    """Return whether the value of `tensor[index] = value` has a row for each element that a mask selects."""
    target, index, value = args
    items = index if type(index) is tuple else (index,)
    masks = [item for item in items if isinstance(item, torch.Tensor) and item.dtype in MASKS and item.dim()]
    if not masks or not isinstance(value, torch.Tensor):
        return False
    whole = sum(type(item) is int for item in items)  # each takes a dimension away
    return bool(value.dim() >= target.dim() - whole - sum(mask.dim() - 1 for mask in masks))


def by_scalars(name: str, func: Callable[..., Any], args: Tuple[Any, ...]) -> Callable[..., Any]:
    """Return the function that takes indices without dimensions that only the device knows, in place of another."""
    index = args[1] if name in _ITEMS else ()
    return BY_SCALARS[name] if any(map(is_scalar, index if type(index) is tuple else (index,))) else func


def _is_awaited(item: Any) -> bool:
    return is_scalar(item) and isinstance(item, Deferred) and not item.value.known


def writes_nothing(name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any], on_host: _OnHost) -> bool:
    """Return whether a function writes into no element of its first argument, by indices that the host has."""
    if name in _INDEXED_WRITES:
        return any(not leaf.numel() for leaf in leaves_in((args[1:], kwargs)))
    if name != "__setitem__":
        return False
    index = with_known_indices("setitem", args[:2], on_host, on_host)[1]
    if any(type(leaf) is not torch.Tensor or leaf.dtype in MASKS for leaf in leaves_in(index)):
        return False  # which the device selects by
    return not torch.empty(args[0].shape, device="meta")[index].numel()


def without_empty(name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Return the arguments of a function that joins tensors without those of the host that have no elements."""
    key = next((each for each in _JOINED if each in kwargs), None)
    given = args[0] if args else kwargs.get(str(key))
    if name not in _JOINING or not isinstance(given, (list, tuple)):
        return args, kwargs
    kept = [each for each in given if type(each) is not torch.Tensor or each.numel() or each.requires_grad]
    if len(kept) in (0, len(given)) or len({each.dtype for each in given}) > 1:
        return args, kwargs
    return ((kept, *args[1:]), kwargs) if args else (args, {**kwargs, str(key): kept})


def _with_numbers(arguments: Any, on_host: _OnHost) -> Any:
    return mapped(arguments, lambda leaf: _as_index(leaf, on_host), lambda value: isinstance(value, _ARRAYS_OR_TENSORS))


def _as_index(leaf: Any, on_host: _OnHost) -> Any:
    if isinstance(leaf, np.ndarray):
        # A copy: writes into an array are not noticed.
        leaf = torch.tensor(leaf)
    value = on_host(leaf) if not leaf.dim() and leaf.dtype in _WHOLE else None
    return leaf if value is None else int(value)


def _without_masks(index: Any, size: Sequence[int], on_host: _OnHost) -> Any:
    items = index if type(index) is tuple else (index,)
    masks = [_mask(item, on_host) for item in items]
    if all(mask is None for mask in masks):
        return index
    _check(items, masks, size)
    found: List[Any] = []
    for item, mask in zip(items, masks):
        found += [item] if mask is None else mask.nonzero(as_tuple=True)
    return tuple(found)


def _mask(item: Any, on_host: _OnHost) -> Optional[torch.Tensor]:
    """Return the mask that an index is, None for another one, or where the device computes the mask."""
    if isinstance(item, np.ndarray) and item.dtype == np.bool_ and item.ndim:
        return torch.tensor(item)
    if isinstance(item, torch.Tensor) and item.dtype in MASKS and item.dim():
        return on_host(item)
    return None


def _check(items: Sequence[Any], masks: Sequence[Optional[torch.Tensor]], size: Sequence[int]) -> None:
    """Refuse masks of other shapes, as PyTorch does: it would not look at their shapes any more."""
    counts = [dimensions_of(item) if mask is None else mask.dim() for item, mask in zip(items, masks)]
    for first, mask, count in zip(first_dimensions(items, counts, len(size)), masks, counts):
        selected = tuple(size[first : first + count])
        if mask is not None and tuple(mask.shape) != selected:
            raise IndexError(
                f"A mask of shape {tuple(mask.shape)} selects from dimensions of shape {selected}, in a tensor of "
                f"shape {tuple(size)}: their shapes have to be the same."
            )
