"""Objects among the arguments of a call or in a batch: what code may read from them, in a comparable form.

A compiled program has what it reads from an object as constants. So an object counts with its contents, however deep
they are: with others it is another program.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import re
import types
from collections import deque
from typing import Any, Callable, Dict, Hashable, Iterator, List, Mapping, Tuple

import numpy as np
import torch

from ignite_ipu.program.guards.names import Named

__all__ = ["Contents", "Same", "contents", "identity"]

_PLAIN = (int, float, bool, str, bytes, complex, type(None), np.generic, enum.Enum, slice, range)
_FIXED = (
    *(_PLAIN),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
    *(pathlib.PurePath, re.Pattern, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal),
    fractions.Fraction,
)
# What functions read by name.
_READABLE = (*_PLAIN, list, tuple, dict, set, frozenset, deque, np.ndarray)
# Whose classes have nothing that a loop would change.
_LIBRARIES = frozenset(["builtins", "torch", "numpy", "abc", "typing", "types", "enum", "collections"])
# Whose objects keep books of their own, which no forward computes from.
_PASSIVE = frozenset(["builtins", "logging", "threading", "_thread", "io", "_io", "random", "weakref", "_weakref"])


class Same:
    """An unhashable or opaque object, equal to itself alone."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return f"a {type(self.value).__qualname__}"


def identity(value: Any) -> Hashable:
    """Return what is equal for an object and those that it says it is equal to."""
    try:
        hash(value)
    except TypeError:
        return Same(value)
    return type(value), value


def contents(value: Any, of_tensor: Callable[[torch.Tensor], Hashable]) -> Hashable:
    """Return everything that code may read from an object, in a comparable form.

    Args:
        value: The object.
        of_tensor: Returns what stands for a tensor that it holds.
    """
    return _Reader(of_tensor).read(value)


class Contents:
    """Contents of an object of a batch that code may read: equal for objects of one class that hold the same.

    Args:
        value: The object.

    Attributes:
        value: The object.
        tensors: The tensors that it holds, which count with their shapes and types.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.tensors: List[torch.Tensor] = []
        self._read: Any = _Reader(self._of_tensor, alike=True).read(value)

    @property
    def opaque(self) -> bool:
        """True if nothing can be read from it, so that it is equal to itself alone."""
        return isinstance(self._read[0], Same)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contents) and self._read == other._read

    def differing(self, other: Contents) -> List[str]:
        """Return the names of the attributes that another object of the class has with other values."""
        mine, theirs = self._by_name(), other._by_name()
        return [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]

    def _by_name(self) -> Dict[str, Hashable]:
        kind, held = self._read[:2]
        if kind is not type(self.value) or not isinstance(held, tuple):
            return {}
        parts = iter(held)
        return {name[1]: part for name, part in zip(parts, parts) if name[0] is str}

    def _of_tensor(self, tensor: torch.Tensor) -> Hashable:
        self.tensors.append(tensor)
        return torch.Tensor, tensor.shape, tensor.dtype


class _Reader:
    """Reads one object; what it holds twice, or what holds it, is read once."""

    def __init__(self, of_tensor: Callable[[torch.Tensor], Hashable], alike: bool = False) -> None:
        self._of_tensor = of_tensor
        # Whether objects of one class are equal that hold the same.
        self._alike = alike
        self._seen: Dict[int, int] = {}
        # Objects that are made by looking, such as bound methods, live until all are read: others would get their ids.
        self._alive: List[Any] = []

    def read(self, value: Any) -> Hashable:
        """Return the contents of a part."""
        kind = type(value)
        if isinstance(value, _FIXED):
            return kind, repr(value) if isinstance(value, slice) else value
        if isinstance(value, torch.Tensor):
            return self._of_tensor(value)
        if id(value) in self._seen:
            return "again", self._seen[id(value)]
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        if isinstance(value, Mapping):
            return kind, self._all(part for item in value.items() for part in item)
        if isinstance(value, (list, tuple, deque)):
            return kind, self._all(value)
        if isinstance(value, (set, frozenset)):
            return kind, frozenset(map(identity, value))
        if isinstance(value, np.ndarray):
            return value.shape, value.dtype.str, value.tobytes()
        if isinstance(value, functools.partial):
            return kind, self._all((value.func, value.args, value.keywords))
        return self._object(value)

    def _object(self, value: Any) -> Hashable:
        parts: Tuple[Any, ...] = ()
        if isinstance(value, types.MethodType):
            return types.MethodType, self._all((value.__func__, value.__self__))
        if isinstance(value, types.FunctionType):
            named = [holder.get(key) for _, holder, key in Named([("", value)]).places]
            parts = tuple([each for each in named if isinstance(each, _READABLE)])
        elif isinstance(value, type):
            parts = tuple(_of_class(value))
        elif type(value).__module__.partition(".")[0] not in _PASSIVE:
            parts = (*_of_class(type(value)), *_of_instance(value))
        of_instances = self._alike and not isinstance(value, (types.FunctionType, type)) and _has_attributes(value)
        return type(value) if of_instances else Same(value), self._all(parts)

    def _all(self, values: Any) -> Tuple[Hashable, ...]:
        return tuple([self.read(value) for value in values])


def _has_attributes(value: Any) -> bool:
    passive = type(value).__module__.partition(".")[0] in _PASSIVE
    return not passive and (
        hasattr(value, "__dict__") or any("__slots__" in vars(kind) for kind in type(value).__mro__)
    )


def _of_class(kind: type) -> Iterator[Any]:
    """Yield names and values of what objects have from a class of the user's, besides functions and the like."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in _LIBRARIES:
            for name, value in vars(base).items():
                if isinstance(value, _READABLE) and not (name.startswith("__") and name.endswith("__")):
                    yield name
                    yield value


def _of_instance(value: Any) -> Iterator[Any]:
    for name, own in getattr(value, "__dict__", {}).items():
        yield name
        yield own
    for kind in type(value).__mro__:
        slots: Any = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name) and name not in ("__dict__", "__weakref__"):
                yield name
                yield getattr(value, name)
