"""Values nested in the arguments and results of PyTorch's calls: lists, tuples, named tuples, dicts and slices."""

from __future__ import annotations

import array
import copy
from typing import Any, Callable, Iterator, List

import torch


def leaves(value: Any) -> Iterator[Any]:
    """Yield everything in `value` that is no container, in order."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    else:
        yield value


def map_leaves(value: Any, fn: Callable[[Any], Any]) -> Any:
    """Return `value` with `fn(leaf)` in place of every leaf."""
    if isinstance(value, (list, tuple)):
        return like(value, [map_leaves(item, fn) for item in value])
    if isinstance(value, dict):
        return {key: map_leaves(item, fn) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(map_leaves(value.start, fn), map_leaves(value.stop, fn), map_leaves(value.step, fn))
    return fn(value)


def like(original: Any, items: List[Any]) -> Any:
    """Return a sequence of the type of `original`, a named tuple or one of PyTorch's return types included."""
    if type(original) in (list, tuple, torch.Size):
        return type(original)(items)
    make = getattr(type(original), "_make", None)
    return make(items) if make is not None else type(original)(items)


def listed(result: Any) -> List[torch.Tensor]:
    """Return what a function returned, a tensor or a sequence of them, as a list."""
    return [result] if isinstance(result, torch.Tensor) else list(result)


def frozen(value: Any) -> Any:
    """Return a leaf that is no tensor as it is now: a copy of an array, which could be written to later."""
    is_array = isinstance(value, (array.array, bytearray)) or hasattr(value, "__array_interface__")
    return copy.deepcopy(value) if is_array else value


def holds_tensors(value: Any) -> bool:
    """Tell whether there is a tensor in `value`."""
    return any(isinstance(leaf, torch.Tensor) for leaf in leaves(value))
