"""Attributes that a model's code reads from Python: a compiled program has their values of when it was traced.

A number that a loop anneals, a dropout rate, a mask that is replaced: a changed value is another program, be it an
attribute of the model or a global. A `forward` that changes them itself would run once, while it is traced, and
natively in every step.
"""

from __future__ import annotations

import array
import collections
import ctypes
import enum
import functools
import inspect
import marshal
import operator
import zlib
from contextvars import ContextVar
from itertools import chain, filterfalse
from types import BuiltinFunctionType, FunctionType, GeneratorType, MappingProxyType, MethodType
from typing import Any, Callable, Collection, Dict, Hashable, Iterator, List, Optional, Sequence, Set, Tuple, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as _of_all_modules
from torch.utils.hooks import RemovableHandle

from ignite_ipu.program.guards.globals import Holder, Inherited, outer_objects, outer_values
from ignite_ipu.program.guards.randomness import Draws
from ignite_ipu.program.guards.reads import READS, is_read, objects_read
from ignite_ipu.program.tensors.trees import tensors_in

__all__ = ["FROZEN_REMEDY", "PythonState", "changed_by", "changed_by_every", "changes_in_every_call"]

FROZEN_REMEDY = (
    "Give it what changes as an argument, and return what it keeps; or register a buffer and write into it in place."
)
T = TypeVar("T")
_PLAIN = (int, float, complex, str, bytes, enum.Enum, type(None), torch.dtype)
_MAPPINGS = (dict, MappingProxyType)
_COLLECTIONS = (*_MAPPINGS, list, tuple, set, frozenset, collections.deque)
# Of which the bytes are compared; those of ctypes are what processes share.
_MEMORY = (array.array, bytearray, memoryview, ctypes.Structure.__mro__[1])
_READABLE = (*_PLAIN, torch.Tensor, np.ndarray, *_COLLECTIONS, *_MEMORY, Iterator)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, functools.partial)
_FIXED = (*_PLAIN, *_FUNCTIONS)
# Of PyTorch's layers only numbers such as rates can change, and functions: the rest says of which shape they were made.
_OF_TORCH = (float, *_FUNCTIONS)
_CHILDREN = "_modules"
_WITHIN = (_CHILDREN, "_parameters", "_buffers")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS: List[Dict[Any, Any]] = [getattr(_of_all_modules, f"_global{kind}") for kind in _HOOKS]
_OWN = frozenset([*vars(nn.Module()), "_is_full_backward_hook", "_forward_hooks_always_called"])
_LONGEST = 64
# The attributes of a module are faster to read than the module.
_is_training: Callable[[Dict[str, Any]], bool] = operator.itemgetter("training")


class _InContext:
    """A variable of a context."""

    def __init__(self, variable: ContextVar[Any]) -> None:
        self._variable = variable

    def get(self, name: str) -> Any:
        """Return its value, None for none."""
        return self._variable.get(None)


class PythonState:
    """The attributes of a model's modules, and the variables that its code names, which a trace reads as constants.

    Args:
        model: The model.
        *others: Functions and objects that are called beside it, such as a loss.
        training: Attributes of modules count if calls for training, or for evaluation, were seen to read them; all
            of them when None.

    Attributes:
        names: What messages call the values.
        parts: The modules within the model and the others, and their hooks.
    """

    def __init__(self, model: nn.Module, *others: Any, training: Optional[bool] = None) -> None:
        self.names: List[str] = []
        self._places: List[Tuple[Holder, str]] = []
        with_others = [model, *[other for other in others if isinstance(other, nn.Module)]]
        self._modules = [module.__dict__ for each in with_others for module in each.modules()]
        self._sizes = list(map(len, self._modules))
        children = [attributes[_CHILDREN] for attributes in self._modules]
        hooks = [*_GLOBAL_HOOKS, *[attributes[kind] for attributes in self._modules for kind in _HOOKS]]
        self._filled: List[Dict[Any, Any]] = list(filter(None, [*children, *hooks]))
        self._childless = list(filterfalse(None, children))
        self._without_hooks = list(filterfalse(None, hooks))
        self._handles = RemovableHandle.next_id
        self.parts: List[Any] = list(chain.from_iterable(map(dict.values, self._filled)))
        named: List[Tuple[str, Any]] = list(model.named_modules())
        for other in others:
            named += other.named_modules() if isinstance(other, nn.Module) else [("", other)]
        self._model = model
        self._named = named
        self._training = training
        self._reads = READS.noted
        self._own = self._attributes()
        for name, place in self._own:
            self.names.append(name)
            self._places.append(place)
        # Objects that lead to values: with another in their place, the values are elsewhere.
        self._leading: List[Any] = []
        self._ways: List[Tuple[Holder, str]] = []
        self._find_configurations([part for _, part in named])
        self._find_outer_values([part for _, part in named])
        self._find_objects(model)
        self._objects = self._objects_now()
        # While they are the same objects, only those can have other values that are changed in place.
        self._found: List[Any] = []
        self._changeable: List[Tuple[int, Any]] = []
        self._values: List[Hashable] = []

    @property
    def complete(self) -> bool:
        """True if parts are the same, no attribute has come or gone since, and values are found at the same places."""
        return (
            self.has_its_places
            and not any(self._childless)
            and (self._handles == RemovableHandle.next_id or self._still_without_hooks())
            and list(chain.from_iterable(map(dict.values, self._filled))) == self.parts
            and (self._reads == READS.noted or self._still_read())
        )

    def _still_without_hooks(self) -> bool:
        """Look for hooks where there were none, which is due when PyTorch has given handles of new ones to somebody."""
        if any(self._without_hooks):
            return False
        self._handles = RemovableHandle.next_id
        return True

    def _still_read(self) -> bool:
        """Look for attributes that are or are not read after all, which is due when reads of some model were noted."""
        if [name for name, _ in self._attributes()] != [name for name, _ in self._own]:
            return False
        if self._objects_now() != self._objects:
            return False
        self._reads = READS.noted
        return True

    def _attributes(self) -> List[Tuple[str, Tuple[Holder, str]]]:
        """Return the names and places of the attributes that count."""
        found: List[Tuple[str, Tuple[Holder, str]]] = []
        for path, module in self._named:
            attributes = getattr(module, "__dict__", {})
            kinds = _OF_TORCH if type(module).__module__.startswith("torch.nn.") else (*_READABLE, *_FUNCTIONS)
            for name, value in attributes.items():
                if name not in _OWN and isinstance(value, kinds) and is_read(module, name, self._training):
                    found.append((f"{path}.{name}" if path else name, (attributes, name)))
        return found

    def _objects_now(self) -> List[Tuple[int, Optional[List[str]]]]:
        if self._training is None:
            return []
        read = objects_read(self._model, self._training)
        return [(id(each.get()), None if each.names is None else sorted(each.names)) for each in read]

    def _find_objects(self, model: nn.Module) -> None:
        """Note what calls of the model were seen to read of other objects than its modules."""
        if self._training is None:
            return
        known = {(id(holder), key) for holder, key in self._places + self._ways}
        inside = {id(part) for _, part in self._named}
        for read in objects_read(model, self._training):
            found = read.get()
            attributes = getattr(found, "__dict__", {})
            # Of a module that is no part of the program the weights are constants, too.
            outside = isinstance(found, nn.Module) and id(found) not in inside
            inner = [attributes[kind] for kind in _WITHIN] if outside else []
            names = set(attributes) if read.names is None else read.names
            for name in sorted(names - _OWN if id(found) in inside else names):
                holder: Any = next((each for each in (attributes, *inner) if name in each), None)
                if isinstance(found, ContextVar):
                    holder = _InContext(found)
                elif holder is None:
                    holder = Inherited(found)
                value = holder.get(name)
                if not isinstance(holder, Inherited) or isinstance(value, _READABLE):
                    self._note(f"{type(found).__name__}.{name}", holder, name, value, known)

    def _note(self, name: str, holder: Holder, key: str, value: Any, known: Set[Tuple[int, str]]) -> None:
        """Note a value, or an object that leads to values, at a place that is not known."""
        if (id(holder), key) in known:
            return
        known.add((id(holder), key))
        if isinstance(value, (*_READABLE, *_FUNCTIONS, nn.Module)):
            self.names.append(name)
            self._places.append((holder, key))
        else:
            self._leading.append(value)
            self._ways.append((holder, key))

    def roots(self) -> Iterator[Any]:
        """Yield the objects that the code gets at by name, for `reads_noted`."""
        for _, part in self._named:
            yield from outer_objects(part, _READABLE)

    @property
    def has_its_places(self) -> bool:
        """True if no attribute has come or gone, and the objects that lead to values are the same."""
        if list(map(len, self._modules)) != self._sizes:
            return False
        return not self._ways or all(map(operator.is_, [holder.get(key) for holder, key in self._ways], self._leading))

    def unchanged(self, training: List[bool], values: List[Hashable]) -> bool:
        """Tell whether this is complete, and `training` and `values` would return these again."""
        if not self.complete or list(map(_is_training, self._modules)) != training:
            return False
        now = self.values()
        return now is values or now == values

    def training(self) -> List[bool]:
        """Return whether each module is in training mode."""
        return list(map(_is_training, self._modules))

    def values(self) -> List[Hashable]:
        """Return the values of this moment, comparable."""
        if not self._places:
            return self._values
        found = [holder.get(key) for holder, key in self._places]
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
        kept = [(name, place) for name, place in zip(self.names, self._places) if name not in names]
        self.names, self._places = [name for name, _ in kept], [place for _, place in kept]
        self._found = []

    def changed(self, before: List[Hashable]) -> List[str]:
        """Return the names of the attributes that had other values before."""
        pairs = zip(self.names, before, self.values())
        return list(dict.fromkeys(name for name, old, new in pairs if old != new))

    def _find_configurations(self, parts: Sequence[Any]) -> None:
        """Note what models of transformers read from their configuration, which is in the code of a library."""
        found = [getattr(part, "__dict__", {}).get("config") for part in parts]
        of_transformers = {id(each): each for each in found if type(each).__module__.split(".")[0] == "transformers"}
        for configuration in of_transformers.values():
            attributes = configuration.__dict__
            for name in [name for name, value in attributes.items() if isinstance(value, _PLAIN)]:
                self.names.append(f"config.{name}")
                self._places.append((attributes, name))

    def _find_outer_values(self, parts: Sequence[Any]) -> None:
        known = {(id(holder), key) for holder, key in self._places}
        for part in parts:
            for found in outer_values(part, _READABLE, self._training):
                self._note(found.name, found.holder, found.key, found.value, known)


def changed_by(model: nn.Module, call: Callable[[Draws], T]) -> Tuple[T, List[str], bool]:
    """Return what `call` returns, what it has changed, and whether it has asked for the time or for random bytes.

    What it has changed are the names of the values of `model` that it has set or deleted, and of what it has drawn
    from. Random generators are put back.

    Args:
        model: The model.
        call: Called with what notes the draws.
    """
    state, draws = PythonState(model), Draws()
    before = state.values()
    try:
        with draws:
            result = call(draws)
        drawn = draws.names()
    finally:
        draws.put_back()
    changed = state.changed(before)
    return result, [*(changed if changed or state.complete else ["new ones"]), *drawn], draws.asked_outside


def changed_by_every(model: nn.Module, call: Callable[[Draws], T]) -> Tuple[T, List[str]]:
    """Return what the first call of `call` returns, and the names of what every call changes or finds changed.

    PyTorch's random numbers are the same in a second call.

    Args:
        model, call: As for `changed_by`; each call begins with the same arguments and buffers.
    """
    random_state = torch.random.get_rng_state()
    result, changed, asked_outside = changed_by(model, call)
    if changed or asked_outside:
        # What the first call set up, such as a cache, stays as it is in the second.
        torch.random.set_rng_state(random_state)
        second, changed, _ = changed_by(model, call)
        if asked_outside and not changed and not _same(result, second):
            changed = ["what it computes from the time or from random bytes"]
    return result, changed


def _same(result: Any, other: Any) -> bool:
    """Tell whether two calls returned the same numbers."""
    pairs = zip(tensors_in(result), tensors_in(other))
    return all(
        mine.shape == theirs.shape and torch.allclose(mine, theirs, rtol=0, atol=0, equal_nan=True)
        for mine, theirs in pairs
    )


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
    if isinstance(value, GeneratorType):
        return id(value), _value(inspect.getgeneratorlocals(value))
    if isinstance(value, Iterator):
        # How far those of Python have come is in what they show or in what they have left.
        return id(value), repr(value), operator.length_hint(value, 0)
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
