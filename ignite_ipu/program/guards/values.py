"""Values in a form that can be compared later, when they may have been changed in place."""

from __future__ import annotations

import array
import ctypes
import datetime
import decimal
import enum
import fractions
import marshal
import pathlib
import re
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType
from typing import Any, Collection, Container, Hashable

import numpy as np
import torch

from ignite_ipu.program.forward.randomness import state_of

__all__ = [
    "BOOKKEEPERS",
    "CONTAINERS",
    "FIXED",
    "FUNCTIONS",
    "READ",
    "Reader",
    "Same",
    "elements_of",
    "is_followed",
    "is_left_behind",
    "leave_behind",
    "times_written",
]

FIXED = (
    *(int, float, complex, str, bytes, enum.Enum, type(None), np.generic, range),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, pathlib.PurePath, re.Pattern),
    *(datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, fractions.Fraction),
)
"""Types of values that nobody can change in place."""

FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, partial)
"""Types of what has code that a call runs, or leads to it."""

_SETS = (set, frozenset)
CONTAINERS = (dict, MappingProxyType, list, tuple, deque, *_SETS)
"""Types of values that hold others."""

# Of which the bytes are compared; those of ctypes are what processes share.
_MEMORY = (array.array, bytearray, memoryview, ctypes.Structure.__mro__[1])

READ = (*FIXED, torch.Tensor, np.ndarray, *CONTAINERS, *_MEMORY, Iterator)
"""Types of values that are compared by what is in them."""

BOOKKEEPERS = frozenset(
    ["builtins", "logging", "threading", "_thread", "io", "_io", "random", "weakref", "_weakref", "_pytest", "pluggy"]
)
"""Packages whose objects keep books of their own, which no forward computes from; pytest's lead to all tests."""


def is_followed(defined: Any, passive: Container[str]) -> bool:
    """Tell whether what a class or function says counts, by who has defined it."""
    module = str(getattr(defined, "__module__", None))
    return module.split(".")[0] not in passive or module.startswith("torch.optim.")


def elements_of(container: Any) -> Collection[Any]:
    """Return what one of `CONTAINERS` holds, whatever else the methods of its class do: import what it names, say."""
    if type(container) is MappingProxyType:
        return container.items()
    return dict.items(container) if isinstance(container, dict) else container


_LEFT_BEHIND = "_ignite_ipu_left_behind"


def leave_behind(tensor: torch.Tensor) -> None:
    """Let a tensor be one that each call of a model computes anew, and leaves in the same place for others."""
    object.__getattribute__(tensor, "__dict__")[_LEFT_BEHIND] = True


def is_left_behind(tensor: torch.Tensor) -> bool:
    """Tell whether `leave_behind` was called with a tensor."""
    # In the ordinary way, a look at a wrapped weight would download all of them.
    return _LEFT_BEHIND in object.__getattribute__(tensor, "__dict__")


def times_written(tensor: torch.Tensor) -> int:
    """Return how often a tensor has been written into; 0 for one of inference mode, which does not count."""
    with torch._C.DisableTorchFunctionSubclass():
        return 0 if torch.Tensor.is_inference(tensor) else tensor._version


class Same:
    """An object that is equal to itself alone, be it hashable or not."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class Reader:
    """Reads values: containers by what they hold, and all else by what it is, which the methods say."""

    def read(self, value: Any) -> Hashable:
        """Return a value in a comparable form."""
        kind: Any = type(value)
        if isinstance(value, FIXED):
            return kind, value
        if isinstance(value, torch.Tensor):
            return self.of_tensor(value)
        if isinstance(value, _SETS):
            return kind, frozenset((type(each), each) for each in value)
        if isinstance(value, CONTAINERS):
            try:
                # Computed by C, where there are no objects in it. Later formats write down which are the same, too.
                plain: Any = list(value) if isinstance(value, deque) else value
                return kind, hash(marshal.dumps(plain, 2))
            except ValueError:
                return (kind, *map(self.read, elements_of(value)))
        if isinstance(value, np.ndarray):
            return value.shape, value.dtype.str, hash(value.tobytes())
        if isinstance(value, _MEMORY):
            return hash(memoryview(value).tobytes())  # type: ignore[arg-type]
        return self.of_object(value)

    def of_tensor(self, tensor: torch.Tensor) -> Hashable:
        """Return which tensor it is, and of which version: one that is written into has another.

        Those that each call leaves behind anew are all alike: none computes from them.
        """
        if is_left_behind(tensor):
            return _LEFT_BEHIND
        return Same(tensor), times_written(tensor)

    def of_object(self, value: Any) -> Hashable:
        """Return which object it is, and how far an iterator has come; methods are equal that are made of the same."""
        if isinstance(value, FUNCTIONS):
            return value
        return state_of(value) if isinstance(value, Iterator) else Same(value)
