"""Objects among the arguments of a call: what code may read from them, in a comparable form.

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
from typing import Any, Dict, Hashable, Iterator, List, Mapping, Tuple

import numpy as np
import torch
from torch import nn

from ignite_ipu.deferred.errors import CaptureError
from ignite_ipu.deferred.owners import parameter_of
from ignite_ipu.outer_values import outer_values

__all__ = ["Same", "contents", "identity"]

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


def contents(value: Any) -> Hashable:
    """Return everything that code may read from an object, in a comparable form.

    Raises:
        CaptureError: It holds tensors that are not weights of a captured model.
    """
    return _Reader(value).read(value)


class _Reader:
    """Reads one object; what it holds twice, or what holds it, is read once."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self._seen: Dict[int, int] = {}
        # Objects that are made by looking, such as bound methods, live until all are read: others would get their ids.
        self._alive: List[Any] = []

    def read(self, value: Any) -> Hashable:
        """Return the contents of a part."""
        kind = type(value)
        if isinstance(value, _FIXED):
            return kind, repr(value) if isinstance(value, slice) else value
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
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
            parts = (value.__defaults__, value.__kwdefaults__, *[each.value for each in outer_values(value, _READABLE)])
        elif isinstance(value, type):
            parts = tuple(_of_class(value))
        elif type(value).__module__.partition(".")[0] not in _PASSIVE:
            parts = (*_of_class(type(value)), *_of_instance(value))
        return Same(value), self._all(parts)

    def _all(self, values: Any) -> Tuple[Hashable, ...]:
        return tuple([self.read(value) for value in values])

    def _tensor(self, tensor: torch.Tensor) -> Hashable:
        if parameter_of(tensor) is not None:
            return Same(tensor)
        kind = type(self._whole)
        remedy = (
            "Make it a part of the model that is prepared."
            if isinstance(self._whole, nn.Module)
            else "Use a tuple, a dict, a dataclass or a types.SimpleNamespace instead."
        )
        raise CaptureError(
            f"A {kind.__qualname__} holds tensors that take part in the step, one of shape {tuple(tensor.shape)}, and "
            f"they cannot be found in it. {remedy}"
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
