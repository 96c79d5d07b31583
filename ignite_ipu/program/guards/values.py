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
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator
from functools import partial
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType
from typing import Any, Callable, Collection, Container, Dict, Hashable, List, Optional, Sequence, Tuple

import numpy as np
import torch

from ignite_ipu.program.forward.randomness import state_of
from ignite_ipu.program.tensors.raw import ACCESS, bring_newest, checksum_of, is_on_cpu, layout_of, size_of
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, version_of

__all__ = [
    "BOOKKEEPERS",
    "CONTAINERS",
    "FIXED",
    "FUNCTIONS",
    "READ",
    "Reader",
    "Same",
    "elements_of",
    "is_fixed",
    "is_followed",
    "is_grown",
    "is_left_behind",
    "leave_behind",
    "replaced_tensors",
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

# Compared by their bytes. Values of ctypes are the ones that processes share.
_MEMORY = (array.array, bytearray, memoryview, ctypes.Structure.__mro__[1])

READ = (*FIXED, torch.Tensor, np.ndarray, *CONTAINERS, *_MEMORY, Iterator)
"""Types of values that are compared by what is in them."""

BOOKKEEPERS = frozenset(
    ["builtins", "logging", "threading", "_thread", "io", "_io", "random", "weakref", "_weakref", "_pytest", "pluggy"]
)
"""Packages whose objects keep books of their own, which no forward computes from; pytest's lead to all tests."""


# The values of larger tensors take too long to compare before each step.
_MOST_COMPARED = 2**14


def is_fixed(value: Any) -> bool:
    """Return whether nothing can change a value in place: one of `FIXED`, or a tuple of them."""
    return isinstance(value, FIXED) or (type(value) is tuple and all(isinstance(each, FIXED) for each in value))


def is_followed(defined: Any, passive: Container[str]) -> bool:
    """Return whether the description of a class or function counts, by its defining module."""
    module = str(getattr(defined, "__module__", None))
    return module.split(".")[0] not in passive or module.startswith("torch.optim.")


def elements_of(container: Any) -> Collection[Any]:
    """Return the elements of one of `CONTAINERS`, without the methods of its class, which may import modules, say."""
    if type(container) is MappingProxyType:
        return container.items()
    return dict.items(container) if isinstance(container, dict) else container


_LEFT_BEHIND = "_ignite_ipu_left_behind"

AWAITED: Dict[type, Callable[[Any], None]] = {}
"""Classes of tensors that stand for values which are still to come, with functions that refuse code that reads them."""


def leave_behind(tensor: torch.Tensor) -> None:
    """Let a tensor be one that each call of a model computes anew, and leaves in the same place for others."""
    object.__getattribute__(tensor, "__dict__")[_LEFT_BEHIND] = True


def is_left_behind(tensor: torch.Tensor) -> bool:
    """Return whether a call has left a tensor for others."""
    return _LEFT_BEHIND in object.__getattribute__(tensor, "__dict__")


# Parameters and buffers that calls have stored under other names, by `id`.
_STORED: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()


def note_stored(tensor: torch.Tensor) -> None:
    """Let a parameter or buffer be one that each call of its model stores in the same place for others."""
    _STORED[id(tensor)] = tensor


class Same:
    """An object that is equal to itself alone, hashable or not."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class _Version(Same):
    """A tensor, and a number of its version; -1 for one that is left behind, which are all alike."""

    def __init__(self, tensor: torch.Tensor, number: int) -> None:
        super().__init__(tensor)
        self.number = number

    def __eq__(self, other: object) -> bool:
        alike = isinstance(other, _Version) and other.number == self.number
        return alike and (self.number < 0 or super().__eq__(other))

    def __hash__(self) -> int:
        return hash(self.number)


class OwnVersion(_Version):
    """A parameter or a buffer of the model whose values are read: a program has its values, whoever writes them.

    In a container where a call stores it, it counts for nothing.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor, -1 if id(tensor) in _STORED else 0)

    def __eq__(self, other: object) -> bool:
        return Same.__eq__(self, other)

    def __hash__(self) -> int:
        return Same.__hash__(self)


class _Emptied(Tuple[Any, ...]):
    """A container without the tensors that calls leave in it, and without containers of these alone.

    Those that were there before are empty before a call. So it is also the same as with empty ones in their place.

    Attributes:
        is_gone: Whether nothing else is in it.
        kept: The container with empty ones.
    """

    is_gone: bool
    kept: Hashable

    def __eq__(self, other: object) -> bool:
        others = (tuple(other), other.kept) if isinstance(other, _Emptied) else (other,)
        return any(form == each for form in (tuple(self), self.kept) for each in others)

    def __hash__(self) -> int:
        return tuple.__hash__(self)


_GONE = object()


def _filled_like(value: Any, elements: Sequence[Any]) -> Any:
    """Return a container of the same type with other elements, pairs for a mapping, without a call of its class."""
    kind: Any = type(value)
    if kind is MappingProxyType:
        return MappingProxyType(dict(elements))
    if isinstance(value, tuple):
        return tuple.__new__(kind, elements)
    new = kind.__new__(kind)
    base: Any = next(each for each in (OrderedDict, dict, list, deque) if isinstance(new, each))
    (base.update if isinstance(new, dict) else base.extend)(new, elements)
    return new


def _is_left(read: Hashable) -> bool:
    return read.is_gone if type(read) is _Emptied else isinstance(read, _Version) and read.number < 0


def _has_memory(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is no sparse one, and of no class that may make tensors without values."""
    ordinary = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return ordinary and layout_of(tensor) is torch.strided and is_on_cpu(tensor)


def replaced_tensors(before: Hashable, now: Hashable) -> Optional[List[Tuple[torch.Tensor, torch.Tensor]]]:
    """Return the tensors in which two results of a `Reader` differ, None if anything else differs."""
    if isinstance(before, _Version) and isinstance(now, _Version):
        return [] if before == now else [(before.value, now.value)]
    if isinstance(before, tuple) and isinstance(now, tuple) and len(before) == len(now):
        parts = [replaced_tensors(*pair) for pair in zip(before, now)]
        return None if None in parts else [pair for part in parts for pair in part or ()]
    return [] if before == now else None


def is_grown(before: Hashable, now: Hashable, made: Callable[[torch.Tensor], bool]) -> bool:
    """Return whether a result of a `Reader` is an earlier one with more tensors, all `made` by a call."""
    if not (isinstance(before, tuple) and isinstance(now, tuple) and now[: len(before)] == before):
        return False
    return all(isinstance(each, _Version) and made(each.value) for each in now[len(before) :])


class Reader:
    """Reads values: containers by their contents, and others by their kind, which the methods describe."""

    def read(self, value: Any) -> Hashable:
        """Return a value in a comparable form, a container without the tensors that calls leave in it."""
        kind: Any = type(value)
        if isinstance(value, FIXED):
            return kind, value
        if isinstance(value, torch.Tensor):
            return self.of_tensor(value)
        if isinstance(value, _SETS):
            return kind, frozenset((type(each), each) for each in value)
        if isinstance(value, CONTAINERS):
            elements = elements_of(value)
            if not elements:
                return (kind,)
            try:
                # Computed by C, where there are no objects in it. Later formats write down which are the same, too.
                plain: Any = list(value) if isinstance(value, deque) else value
                return kind, hash(marshal.dumps(plain, 2))
            except ValueError:
                found = list(map(self.read, elements))
                if any(type(each) is _Emptied or _is_left(each) for each in found):
                    return self._of_emptied(kind, value)
                return (kind, *found)
        if isinstance(value, np.ndarray):
            return value.shape, value.dtype.str, hash(value.tobytes())
        if isinstance(value, _MEMORY):
            return hash(memoryview(value).tobytes())  # type: ignore[arg-type]
        return self.of_object(value)

    def of_tensor(self, tensor: torch.Tensor) -> Hashable:
        """Return which tensor it is, and of which version: one that is written into has another.

        The values count where code and devices write them in ways that PyTorch does not count, such as `tensor.data`
        and memory that numpy shares: those of a parameter, and of a tensor of up to 16,384 elements.
        """
        if is_left_behind(tensor):
            return _Version(tensor, -1)
        is_wrapped = hasattr(type(tensor), ACCESS)
        if is_wrapped or type(tensor) is torch.nn.Parameter:
            # Of another model. PyTorch counts neither a device's updates nor writes through `parameter.data`.
            if is_wrapped:
                bring_newest(tensor)
            return _Version(tensor, checksum_of(tensor))
        with DisableTorchFunctionSubclass():
            # One of inference mode does not count.
            number = 0 if torch.Tensor.is_inference(tensor) else version_of(tensor)
            if _has_memory(tensor) and size_of(tensor) <= _MOST_COMPARED:
                number = number << 32 | checksum_of(tensor)
            return _Version(tensor, number)

    def _of_emptied(self, kind: type, value: Any) -> Hashable:
        """Return a container in which calls leave tensors."""
        without, kept = (self._without_left(value, keeps) for keeps in (False, True))
        known = () if without is _GONE else self.read(without)
        found = _Emptied((kind, *known[1:]) if isinstance(known, tuple) else (kind, known))
        found.is_gone, found.kept = without is _GONE, (kind,) if kept is _GONE else self.read(kept)
        return found

    def _without_left(self, value: Any, keeps: bool) -> Any:
        """Return a value without left tensors, and containers of these alone as empty ones if it `keeps` them."""
        if isinstance(value, torch.Tensor):
            return _GONE if _is_left(self.of_tensor(value)) else value
        if not isinstance(value, CONTAINERS) or isinstance(value, _SETS):
            return value
        found = [(self._without_left(each, keeps), each) for each in elements_of(value)]
        rest = [new for new, _ in found if new is not _GONE]
        if len(rest) < len(found) and (isinstance(value, tuple) or not (rest or keeps)):
            return _GONE
        return value if all(new is each for new, each in found) else _filled_like(value, rest)

    def of_object(self, value: Any) -> Hashable:
        """Return which object it is, and how far an iterator has come; methods are equal that are made of the same."""
        if isinstance(value, FUNCTIONS):
            return value
        return state_of(value) if isinstance(value, Iterator) else Same(value)
