"""Reads of Python objects by a model's calls: of its modules, of a configuration, of whatever a loss looks at.

A loop keeps books on its model: `model.epoch = epoch`, `model.history.append(loss)`. What no call reads is in no
program, and may change without another compilation. What a call does read counts by whichever way the code got there:
through a local variable, an argument of a helper, an element of a list.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import os
import sys
import threading
import weakref
from contextvars import ContextVar
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

import numpy as np
import torch
from torch import nn

from ignite_ipu import backend
from ignite_ipu.program.guards.randomness import Draws
from ignite_ipu.program.user_code import is_users_file

__all__ = ["READS", "ObjectRead", "is_read", "objects_read", "reads_noted", "stored_attribute"]

# What is read instead of single attributes, by code that looks for them and by copies.
_ALL = frozenset(["__dict__", "__getstate__"])
_LOOKS = frozenset([*_ALL, "vars", "getattr", "attrgetter"])
_CONTAINERS = (list, tuple, set, frozenset, collections.deque, dict, MappingProxyType)
_CACHED = type(functools.lru_cache(maxsize=None)(id))
_ASK_ENVIRONMENT = frozenset(["environ", "getenv"])
_LEAVES = (
    *(int, float, complex, str, bytes, type(None), torch.Tensor, torch.dtype, torch.device, np.ndarray),
    *(BuiltinFunctionType, ModuleType),
)
_DEEPEST = 4
_MOST_ELEMENTS = 1024
_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8
_LIBRARIES = frozenset(["builtins", "torch", "numpy", "poptorch", "logging", "threading", "_thread"])


class ObjectRead(NamedTuple):
    """An object that calls of a model have read, beside the model's modules.

    Attributes:
        get: Returns it, None when it is gone.
        names: The attributes that were read; None for all, where reads cannot be noted.
    """

    get: Callable[[], Any]
    names: Optional[Set[str]]


class _Reads:
    """Counts how often reads were noted: `is_read` and `objects_read` answer the same while it stays.

    Attributes:
        noted: The count.
    """

    __slots__ = ("noted",)

    def __init__(self) -> None:
        self.noted = 0


READS = _Reads()
# Classes are changed for everybody, so that one thread does it at a time.
_TURN = threading.RLock()
# By module, the names that calls for evaluation and for training have read of it.
_OF_MODULES: weakref.WeakKeyDictionary[nn.Module, Dict[bool, Set[str]]] = weakref.WeakKeyDictionary()
# By the model that was called, and the purpose: the other objects, by `id`.
_OF_OBJECTS: weakref.WeakKeyDictionary[nn.Module, Dict[bool, Dict[int, ObjectRead]]] = weakref.WeakKeyDictionary()


def is_read(module: Any, name: str, training: Optional[bool]) -> bool:
    """Tell whether code may read an attribute: some did, or no call of this module's model has been looked at.

    Args:
        module: The module, or any other object, whose attributes are not looked at.
        name: The attribute.
        training: Whether it is calls for training, or for evaluation, that count; None for all that code could do.
    """
    if training is None or not isinstance(module, nn.Module):
        return True
    read = _OF_MODULES.get(module, {}).get(training)
    return read is None or name in read or not _ALL.isdisjoint(read)


def objects_read(model: nn.Module, training: bool) -> List[ObjectRead]:
    """Return the objects that calls of a model, or of its parts, were seen to read, those that still exist."""
    found: Dict[int, ObjectRead] = {}
    for module in model.modules():
        found.update(_OF_OBJECTS.get(module, {}).get(training, {}))
    return [each for each in found.values() if each.get() is not None]


@contextlib.contextmanager
def reads_noted(
    model: nn.Module, training: bool, roots: Iterable[Any] = (), draws: Optional[Draws] = None
) -> Iterator[None]:
    """Note what is read in the `with` block, in which a model is called for training or not.

    Of PyTorch's own modules in the model nothing is noted: all of their attributes count.

    Args:
        model: The model.
        training: Whether it is called for training.
        roots: Other objects that the code gets at by name.
        draws: What looks at the random generators among all that is read.
    """
    modules = [module for module in model.modules() if not type(module).__module__.startswith("torch.")]
    found_by_name = list(roots)
    with _TURN, contextlib.ExitStack() as stack:
        draws = Draws() if draws is None else draws
        stack.callback(draws.unmark)
        watch = _Watch(model, draws)
        stack.callback(watch.end)
        for module in modules:
            watch.note(module)
        for root in found_by_name:
            watch.look_at(root)
        yield
    for module in modules:
        _, names = watch.noted.pop(id(module))
        read = _OF_MODULES.setdefault(module, {})
        if training not in read or not names <= read[training]:
            read[training] = names | read.get(training, set())
            READS.noted += 1
        watch.noted[id(module)] = (module, watch.mentioned & _class_attributes(type(module)))
    objects = _OF_OBJECTS.setdefault(model, {}).setdefault(training, {})
    for key, (found, _) in watch.noted.items():
        known = objects.get(key)
        before: Optional[Set[str]] = known.names if known is not None and known.get() is found else set()
        added = watch.names_of(key)
        now = None if added is None or before is None else before | added
        if now != before:
            objects[key] = ObjectRead(watch.reference(found), now)
            READS.noted += 1


class _Watch:
    """Classes whose instances note their reads for a while.

    Args:
        model: The model, of which PyTorch's modules are not looked at.
        draws: What looks at the random generators among all that is read.

    Attributes:
        noted: By `id`, objects and the attributes that were read of them.
        unwatched: The objects whose reads cannot be noted.
    """

    def __init__(self, model: nn.Module, draws: Draws) -> None:
        self._draws = draws
        self.noted: Dict[int, Tuple[Any, Set[str]]] = {}
        self.unwatched: Set[int] = set()
        self._own = {id(module) for module in model.modules()}
        # By `id`, the object through which another was found, and its attribute; None for any attribute.
        self._ways: Dict[int, Tuple[Any, Optional[str]]] = {}
        self._undo: List[Callable[[], None]] = []
        self._classes: Set[type] = set()
        self._ran: Set[CodeType] = set()
        self._holding: List[Any] = []
        self._libraries = tuple([os.path.dirname(str(each.__file__)) + os.sep for each in (torch, backend.poptorch())])

    def end(self) -> None:
        """Give the classes back what they had, and find the objects that the call has made for all later ones."""
        try:
            before = set(self.noted)
            for value in self._holding[:]:
                self.look_at(_held(value))
            made = [key for key in self.noted.keys() - before if not isinstance(self.noted[key][0], type)]
            self.unwatched.update(made)
        finally:
            while self._undo:
                self._undo.pop()()

    def _reach(self, code: CodeType) -> None:
        """Take notice of code that runs: of what it mentions, and of the environment if it asks for that."""
        if code in self._ran:
            return
        self._ran.add(code)
        if not _ASK_ENVIRONMENT.isdisjoint(code.co_names):
            self.noted[id(os.environ)] = (os.environ, {"_data"})
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._reach(constant)

    @functools.cached_property
    def mentioned(self) -> Set[Any]:
        """The names, and all other constants, in the user's code that has run; to be asked for after `end`."""
        return {name for code in self._ran for name in (*code.co_names, *code.co_consts)}

    def names_of(self, key: int) -> Optional[Set[str]]:
        """Return the attributes of an object that code has read, None for all of them."""
        found, names = self.noted[key]
        if key in self.unwatched:
            looks = not _LOOKS.isdisjoint(self.mentioned)
            return None if looks else self.mentioned & getattr(found, "__dict__", {}).keys()
        return names | (self.mentioned & _class_attributes(type(found))) if _ALL.isdisjoint(names) else None

    def reference(self, found: Any) -> Callable[[], Any]:
        """Return what gives an object without keeping it, which may hold the model.

        What cannot be referred to weakly is looked for where it was found. Only what the code gets at by name is kept.
        """
        try:
            return weakref.ref(found)
        except TypeError:
            way = self._ways.get(id(found))
            return (lambda: found) if way is None else _Way(id(found), self.reference(way[0]), way[1])

    def note(self, found: Any) -> None:
        """Note what is read of an object from now on."""
        self.noted[id(found)] = (found, set())
        kind = type(found)
        if kind in self._classes:
            return
        flags = kind.__flags__
        if not flags & _HEAP_TYPE or flags & _IMMUTABLE_TYPE:
            self.unwatched.add(id(found))
            self.look_at(getattr(found, "__dict__", {}), (found, None))
            return
        self._classes.add(kind)
        self._patch(kind)

    def look_at(self, value: Any, way: Optional[Tuple[Any, Optional[str]]] = None) -> None:
        """Note what is read of the objects that a value is or holds.

        Args:
            value: The value.
            way: The object whose attribute it is, and which; None for what the code gets at by name.
        """
        for found in _objects_in(value):
            if id(found) in self.noted or id(found) in self._own or self._draws.look_at(found):
                continue
            kind = type(found)
            if issubclass(kind, FunctionType):
                if is_users_file(found.__code__.co_filename):
                    self._reach(found.__code__)
            elif issubclass(kind, ContextVar):
                self.noted[id(found)] = (found, {found.name})
                self.look_at(found.get(None))
            elif issubclass(kind, (type, _CACHED)):
                if kind is _CACHED or _may_be_the_users(found):
                    self.noted[id(found)] = (found, set())
                    self._holding.append(found)
                    self.look_at(_held(found))
            elif issubclass(kind, nn.Module):
                for module in found.modules():
                    if id(module) not in self._own:
                        self.note(module)
            elif _may_be_the_users(kind):
                if way is not None:
                    self._ways[id(found)] = way
                self.note(found)

    def _counts(self, found: Any, name: str, reader: FrameType) -> bool:
        """Tell whether a read counts, by the frame that reads.

        PyTorch and PopTorch look for parameters and children in a module's dictionary. What a library keeps in its own
        objects is nobody's to change, but a call of a method may give some of it.
        """
        users = is_users_file(reader.f_code.co_filename)
        if users:
            self._reach(reader.f_code)
        if issubclass(type(found), nn.Module):
            return name not in _ALL or not reader.f_code.co_filename.startswith(self._libraries)
        caller = reader.f_back
        return users or (caller is not None and is_users_file(caller.f_code.co_filename))

    def _patch(self, kind: Any) -> None:
        original: Callable[[Any, str], Any] = kind.__getattribute__
        own: Optional[Any] = vars(kind).get("__getattribute__")
        noted, counts = self.noted, self._counts

        def noting(instance: Any, name: str) -> Any:
            found = noted.get(id(instance))
            if found is None or not counts(instance, name, sys._getframe(1)):
                return original(instance, name)
            found[1].add(name)
            value = original(instance, name)
            self.look_at(value, (instance, name))
            return value

        try:
            kind.__getattribute__ = noting
        except (AttributeError, TypeError):
            return
        self._undo.append(lambda: _put_back(kind, own))


def _put_back(kind: Any, own: Optional[Any]) -> None:
    if own is None:
        del kind.__getattribute__
    else:
        kind.__getattribute__ = own


def _held(value: Any) -> List[Any]:
    """Return the values of a class's attributes, or what a function has returned that keeps that in a cache."""
    if not isinstance(value, type):
        return gc.get_referents(value)
    own = [base for base in value.__mro__ if _may_be_the_users(base)]
    return [each for base in own for name, each in vars(base).items() if name[:2] != "__"]


def _class_attributes(kind: type) -> Set[str]:
    """Return the names of what a class of the user's own says that is no method: code may read it of the class."""
    own = [base for base in kind.__mro__ if _may_be_the_users(base)]
    return {name for base in own for name, value in vars(base).items() if not callable(value) and name[:2] != "__"}


def _may_be_the_users(kind: type) -> bool:
    library = kind.__module__.split(".")[0]
    return library not in _LIBRARIES or kind.__module__.startswith("torch.optim.")


def _objects_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the objects that a value is or holds."""
    # isinstance() would read the class of a value, which is a read, too.
    kind = type(value)
    if issubclass(kind, (MethodType, BuiltinFunctionType)):
        yield from _objects_in(value.__self__, depth)
        return
    if issubclass(kind, _LEAVES):
        return
    if issubclass(kind, _CONTAINERS):
        if depth < _DEEPEST and len(value) <= _MOST_ELEMENTS:
            for element in list(value.values() if issubclass(kind, (dict, MappingProxyType)) else value):
                yield from _objects_in(element, depth + 1)
    elif issubclass(kind, weakref.ProxyTypes):
        with contextlib.suppress(ReferenceError):
            yield from _objects_in(value.__repr__.__self__, depth)
    elif issubclass(kind, weakref.ref):
        yield from _objects_in(value(), depth)
    elif kind is functools.partial:
        yield from _objects_in([value.func, *value.args, *value.keywords.values()], depth)
    else:
        yield value


class _Way:
    """Gives an object by the attribute through which it was found.

    Args:
        key: Its `id`.
        owner: Gives the object whose attribute that is.
        name: The attribute; None for any.
    """

    def __init__(self, key: int, owner: Callable[[], Any], name: Optional[str]) -> None:
        self._key = key
        self._owner = owner
        self._name = name

    def __call__(self) -> Any:
        owner = self._owner()
        value = getattr(owner, "__dict__", {}) if self._name is None else stored_attribute(owner, self._name)
        return next((found for found in _objects_in(value) if id(found) == self._key), None)


def stored_attribute(owner: Any, name: str) -> Any:
    """Return an attribute of an object or of its class as it is stored, without running code; None for none."""
    own = getattr(owner, "__dict__", {})
    if name in own:
        return own[name]
    found = next((vars(kind)[name] for kind in type(owner).__mro__ if name in vars(kind)), None)
    # Of an object with slots the class has where they are.
    return getattr(owner, name, None) if isinstance(found, MemberDescriptorType) else found
