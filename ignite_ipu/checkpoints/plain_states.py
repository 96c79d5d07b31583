"""States without the methods that some schedulers keep in theirs.

`OneCycleLR` and `SWALR` of PyTorch 2.0, and Ignite's `ReduceLROnPlateauScheduler`, have a method of their own in their
state. A file with it would hold the scheduler and its optimizer once more, and nothing could read it without running
code. Whoever loads such a state has that method already, and keeps it.
"""

from __future__ import annotations

import copy
import types
from typing import Any

__all__ = ["without_methods"]

_DEEPEST = 16
_OWNERS = ("torch", "ignite")


def without_methods(state: Any, depth: int = 0) -> Any:
    """Return a state without the methods of PyTorch's and Ignite's classes in it; itself, if it has none."""
    if depth == _DEEPEST:
        return state
    if isinstance(state, dict):
        kept = {key: without_methods(value, depth + 1) for key, value in state.items() if not _is_method(value)}
        if len(kept) == len(state) and all(kept[key] is value for key, value in state.items()):
            return state
        changed = copy.copy(state)
        changed.clear()
        changed.update(kept)
        return changed
    if type(state) in (list, tuple):
        items = [without_methods(item, depth + 1) for item in state]
        return state if all(new is old for new, old in zip(items, state)) else type(state)(items)
    return state


def _is_method(value: Any) -> bool:
    is_static = isinstance(value, types.FunctionType) and "." in value.__qualname__
    is_method = is_static or isinstance(value, types.MethodType)
    return is_method and str(value.__module__).partition(".")[0] in _OWNERS
