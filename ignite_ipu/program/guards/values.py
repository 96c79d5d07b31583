"""Values in a form that can be compared later, when they may have been changed in place."""

from __future__ import annotations

import array
import collections
import ctypes
import datetime
import decimal
import enum
import fractions
import marshal
import pathlib
import re
from collections.abc import Iterator
from functools import partial
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType
from typing import Any, Collection, Hashable, ItemsView

import numpy as np
import torch

from ignite_ipu.program.forward.randomness import state_of

__all__ = ["FIXED", "FUNCTIONS", "MAPPINGS", "READ", "SEQUENCES", "SETS", "Reader", "Same", "items_of"]

FIXED = (
    *(int, float, complex, str, bytes, enum.Enum, type(None), np.generic, range),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, pathlib.PurePath, re.Pattern),
    *(datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, fractions.Fraction),
)
"""Types of values that nobody can change in place."""

FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, partial)
"""Types of what has code that a call runs, or leads to it."""

MAPPINGS = (dict, MappingProxyType)
_PLAIN = (*MAPPINGS, collections.OrderedDict)
SEQUENCES = (list, tuple, collections.deque)
SETS = (set, frozenset)
# Of which the bytes are compared; those of ctypes are what processes share.
_MEMORY = (array.array, bytearray, memoryview, ctypes.Structure.__mro__[1])
_LONGEST = 64

READ = (*FIXED, torch.Tensor, np.ndarray, *MAPPINGS, *SEQUENCES, *SETS, *_MEMORY, Iterator)
"""Types of values that are compared by what is in them."""


def items_of(mapping: Any) -> ItemsView[Any, Any]:
    """Return what one of `MAPPINGS` holds, whatever else the methods of its class do: import what it names, say."""
    if type(mapping) in _PLAIN:
        return mapping.items()  # type: ignore[no-any-return]
    return (collections.OrderedDict if isinstance(mapping, collections.OrderedDict) else dict).items(mapping)


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
        kind = type(value)
        if isinstance(value, FIXED):
            return kind, value
        if isinstance(value, torch.Tensor):
            return self.of_tensor(value)
        if isinstance(value, MAPPINGS):
            items = items_of(value)
            return self._long(value, items) or (kind, *[(self.read(key), self.read(item)) for key, item in items])
        if isinstance(value, SEQUENCES):
            return self._long(value, value) or (kind, *map(self.read, value))
        if isinstance(value, SETS):
            return kind, frozenset((type(each), each) for each in value)
        if isinstance(value, np.ndarray):
            return value.shape, value.dtype.str, hash(value.tobytes())
        if isinstance(value, _MEMORY):
            return hash(memoryview(value).tobytes())  # type: ignore[arg-type]
        return self.of_object(value)

    def of_tensor(self, tensor: torch.Tensor) -> Hashable:
        """Return which tensor it is, and of which version: one that is written into has another."""
        with torch._C.DisableTorchFunctionSubclass():
            return Same(tensor), 0 if torch.Tensor.is_inference(tensor) else tensor._version

    def of_object(self, value: Any) -> Hashable:
        """Return which object it is, and how far an iterator has come."""
        if isinstance(value, FUNCTIONS):
            return value  # methods are equal that are made of the same
        return state_of(value) if isinstance(value, Iterator) else Same(value)

    def _long(self, value: Any, elements: Collection[Any]) -> Hashable:
        """Return something for the contents of a long collection, computed by C; None where there are objects in it."""
        if len(elements) <= _LONGEST:
            return None
        try:
            # Later formats write down which objects are the same, too.
            contents = marshal.dumps(list(value) if isinstance(value, collections.deque) else value, 2)
        except ValueError:
            return None
        return type(value), len(elements), hash(contents)
