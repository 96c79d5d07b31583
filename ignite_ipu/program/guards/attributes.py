"""Attributes that a model's code reads from Python: a compiled program has their values of when it was traced.

A number that a loop anneals, a dropout rate, a mask that is replaced: a changed value is another program, be it an
attribute of the model or a global. A `forward` that changes them itself would run once, while it is traced, and
natively in every step.
"""

from __future__ import annotations

import array
import collections
import contextlib
import ctypes
import enum
import marshal
import operator
import zlib
from itertools import chain, filterfalse
from types import MappingProxyType
from typing import Any, Callable, Collection, Dict, Hashable, Iterator, List, Sequence, Tuple

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as _of_all_modules
from torch.utils.hooks import RemovableHandle

from ignite_ipu.program.guards.names import FUNCTIONS, HOOKS, Named, Place
from ignite_ipu.program.guards.randomness import state_of

__all__ = ["FROZEN_REMEDY", "PythonState", "changes_in_every_call"]

FROZEN_REMEDY = (
    "Give it what changes as an argument, and return what it keeps; or register a buffer and write into it in place."
)
_PLAIN = (int, float, complex, str, bytes, enum.Enum, type(None), torch.dtype)
_MAPPINGS = (dict, MappingProxyType)
_COLLECTIONS = (*_MAPPINGS, list, tuple, set, frozenset, collections.deque)
# Of which the bytes are compared; those of ctypes are what processes share.
_MEMORY = (array.array, bytearray, memoryview, ctypes.Structure.__mro__[1])
_READABLE = (*_PLAIN, torch.Tensor, np.ndarray, *_COLLECTIONS, *_MEMORY, Iterator, *FUNCTIONS, nn.Module)
_FIXED = (*_PLAIN, *FUNCTIONS)
_GLOBAL_HOOKS: List[Dict[Any, Any]] = [getattr(_of_all_modules, f"_global{kind}") for kind in HOOKS]
_LONGEST = 64
# The attributes of a module are faster to read than the module.
_is_training: Callable[[Dict[str, Any]], bool] = operator.itemgetter("training")


class PythonState:
    """The attributes of a model's modules, and the variables that its code names, which a trace reads as constants.

    Args:
        model: The model.
        *others: Functions and objects that are called beside it, such as a loss.

    Attributes:
        names: What messages call the values.
        parts: The modules within the model and the others, and their hooks.
        words: All names in the code.
        iterators: The iterators and random generators among what it gets at.
    """

    def __init__(self, model: nn.Module, *others: Any) -> None:
        with_others = [model, *[other for other in others if isinstance(other, nn.Module)]]
        self._modules = [module.__dict__ for each in with_others for module in each.modules()]
        self._sizes = list(map(len, self._modules))
        children = [attributes["_modules"] for attributes in self._modules]
        hooks = [*_GLOBAL_HOOKS, *[attributes[kind] for attributes in self._modules for kind in HOOKS]]
        self._filled: List[Dict[Any, Any]] = list(filter(None, [*children, *hooks]))
        self._childless = list(filterfalse(None, children))
        self._without_hooks = list(filterfalse(None, hooks))
        self._handles = RemovableHandle.next_id
        self.parts: List[Any] = list(chain.from_iterable(map(dict.values, self._filled)))
        called = list(model.named_modules())
        for other in others:
            called += other.named_modules() if isinstance(other, nn.Module) else [("", other)]
        called += [("self", hook) for kind in _GLOBAL_HOOKS for hook in kind.values()]
        named = Named(called)
        self.words, self.iterators = named.names, named.iterators
        places = [*named.places, *_configurations([part for _, part in called])]
        readable = [isinstance(place.holder.get(place.key), _READABLE) for place in places]
        self._places = [place for place, reads in zip(places, readable) if reads]
        self.names = [place.name for place in self._places]
        # Objects that lead to values: with another in their place, the values are elsewhere.
        self._ways = [place for place, reads in zip(places, readable) if not reads]
        self._leading = [place.holder.get(place.key) for place in self._ways]
        # While they are the same objects, only those can have other values that are changed in place.
        self._found: List[Any] = []
        self._changeable: List[Tuple[int, Any]] = []
        self._values: List[Hashable] = []

    @property
    def complete(self) -> bool:
        """True if parts are the same, no attribute has come or gone since, and values are found at the same places."""
        return (
            list(map(len, self._modules)) == self._sizes
            and all(map(operator.is_, [holder.get(key) for _, holder, key in self._ways], self._leading))
            and not any(self._childless)
            and (self._handles == RemovableHandle.next_id or self._still_without_hooks())
            and list(chain.from_iterable(map(dict.values, self._filled))) == self.parts
        )

    def _still_without_hooks(self) -> bool:
        """Look for hooks where there were none, which is due when PyTorch has given handles of new ones to somebody."""
        if any(self._without_hooks):
            return False
        self._handles = RemovableHandle.next_id
        return True

    def unchanged(self, training: List[bool], values: List[Hashable]) -> bool:
        """Tell whether this is complete, and `training` and `values` would return these again."""
        if not self.complete or list(map(_is_training, self._modules)) != training:
            return False
        now = self.values()
        return now is values or now == values

    def training(self) -> List[bool]:
        """Return whether each module is in training mode."""
        return list(map(_is_training, self._modules))

    @contextlib.contextmanager
    def in_modes(self, training: Sequence[bool]) -> Iterator[None]:
        """Put each module in training mode or not in the `with` block, without calling any of the model's code."""
        before = self.training()
        try:
            for attributes, mode in zip(self._modules, training):
                attributes["training"] = mode
            yield
        finally:
            for attributes, mode in zip(self._modules, before):
                attributes["training"] = mode

    def values(self) -> List[Hashable]:
        """Return the values of this moment, comparable."""
        if not self._places:
            return self._values
        found = [holder.get(key) for _, holder, key in self._places]
        if len(found) != len(self._found) or not all(map(operator.is_, found, self._found)):
            self._found = found
            self._changeable = [(number, value) for number, value in enumerate(found) if not isinstance(value, _FIXED)]
            self._values = list(map(_value, found))
            return self._values
        changed = [
            (number, now) for number, value in self._changeable if (now := _value(value)) != self._values[number]
        ]
        if changed:
            # Somebody may still have the values of before.
            self._values = list(self._values)
            for number, now in changed:
                self._values[number] = now
        return self._values

    def leave_out(self, names: Collection[str]) -> None:
        """Forget values, by their names in messages."""
        self._places = [place for place in self._places if place.name not in names]
        self.names = [place.name for place in self._places]
        self._found = []

    def changed(self, before: List[Hashable]) -> List[str]:
        """Return the names of the attributes that had other values before."""
        pairs = zip(self.names, before, self.values())
        return list(dict.fromkeys(name for name, old, new in pairs if old != new))


def _configurations(parts: Sequence[Any]) -> List[Place]:
    """Return what models of transformers read from their configuration, which is in the code of a library."""
    found = [getattr(part, "__dict__", {}).get("config") for part in parts]
    of_transformers = {id(each): vars(each) for each in found if type(each).__module__.split(".")[0] == "transformers"}
    return [
        Place(f"config.{name}", attributes, name)
        for attributes in of_transformers.values()
        for name, value in attributes.items()
        if isinstance(value, _PLAIN)
    ]


def changes_in_every_call(forward: str, changed: Sequence[str]) -> str:
    """Return why a model cannot be compiled whose forward, which messages call `forward`, changes these values."""
    return (
        f"{forward} changes Python values in every call ({', '.join(changed)}), but a compiled program runs it once, "
        f"while it is traced: later steps would have the values of the first. {FROZEN_REMEDY}"
    )


def _value(value: Any) -> Hashable:
    # What libraries keep in their models are collections, most of them empty.
    if isinstance(value, _COLLECTIONS):
        if len(value) > _LONGEST:
            return _long_value(value)
        if isinstance(value, _MAPPINGS):
            return tuple([(_value(key), _value(item)) for key, item in value.items()])
        items = map(_value, value)
        return frozenset(items) if isinstance(value, (set, frozenset)) else tuple(items)
    if isinstance(value, _FIXED):
        return value
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, zlib.crc32(np.ascontiguousarray(value).tobytes())
    if isinstance(value, _MEMORY):
        memory: Any = value
        return zlib.crc32(memoryview(memory).tobytes())
    if isinstance(value, torch.Tensor):
        # A tensor that is replaced is another object, and one that is written into has another version.
        with torch._C.DisableTorchFunctionSubclass():
            return id(value), 0 if torch.Tensor.is_inference(value) else value._version
    if isinstance(value, Iterator):
        return state_of(value)
    return id(value)


def _long_value(value: Any) -> Hashable:
    """Return something for the contents of a long collection, computed by C where there are only plain values in it."""
    if isinstance(value, (set, frozenset)):
        return frozenset(map(_value, value))
    try:
        # Later formats write down which objects are the same, too.
        contents = marshal.dumps(list(value) if isinstance(value, collections.deque) else value, 2)
    except ValueError:
        items = value.items() if isinstance(value, _MAPPINGS) else value
        return tuple(map(_value, items))
    return len(value), zlib.crc32(contents)
