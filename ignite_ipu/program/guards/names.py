"""Values that running code names: globals, closures, imports, and attributes of whatever it gets at by these names.

From the functions that a call enters, the names in their code lead to objects and to other functions, whose names are
looked up in all objects that were found. Which function reads which object is not asked: a value that is found and not
read costs a comparison, and another program when it changes.
"""

from __future__ import annotations

import collections
import contextlib
import dis
import enum
import functools
import os
import sys
import weakref
from collections.abc import Iterator as AnyIterator
from contextvars import ContextVar
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, Callable, Container, Dict, Iterable, List, NamedTuple, Optional, Protocol, Set, Tuple

import numpy as np
import torch
from torch import nn

from ignite_ipu.program.guards.randomness import GENERATORS
from ignite_ipu.program.user_code import is_users_file

__all__ = ["FUNCTIONS", "HOOKS", "OWN", "Holder", "Named", "Place"]

FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, functools.partial)
"""Types of what has code that a call runs, or leads to it."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks")
"""The attributes of a module that hold functions which a call of it runs."""

OWN = frozenset([*vars(nn.Module()), "_is_full_backward_hook", "_forward_hooks_always_called"])
"""The attributes that PyTorch gives every module."""

# The methods that a call of an object, or a look at it, runs without naming them, and those that make an object.
_ENTRIES = frozenset(["forward", "__call__", "__getattr__", "__getattribute__", "__getitem__", "__iter__", "__next__"])
_MAKING = frozenset(["__init__", "__new__", "__post_init__"])
_LEAVES = (
    *(int, float, complex, str, bytes, enum.Enum, type(None), torch.Tensor, torch.dtype, torch.device, np.ndarray),
)
_CONTAINERS = (list, tuple, set, frozenset, collections.deque, dict, MappingProxyType)
_WRAPPERS = {property: "fget", staticmethod: "__func__", classmethod: "__func__", functools.cached_property: "func"}
_DEEPEST = 4
_MOST_ELEMENTS = 1024
# Whose objects have nothing that a loop would change, but for torch's optimizers and their schedulers.
_PASSIVE = frozenset(["builtins", "torch", "numpy", "poptorch", "logging", "threading", "_thread", "unittest"])
# Whose code does not say what a call of a model reads.
_HOSTS = _PASSIVE | {"ignite", "ignite_ipu", "accelerate"}
_ASK_ENVIRONMENT = frozenset(["environ", "getenv"])
_TENSORS = ("_parameters", "_buffers", "_modules")


class Holder(Protocol):
    """Holder of a value that is looked up: the dictionary of a module or an object, or a closure's variable."""

    def get(self, name: str) -> Any:
        """Return the value of this moment, None for none."""


class Place(NamedTuple):
    """Place where code finds a value.

    Attributes:
        name: What messages call it.
        holder, key: Where it is.
    """

    name: str
    holder: Holder
    key: str


class _Variable:
    """A variable of an enclosing function or of a context, or an argument."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read = read

    def get(self, name: str) -> Any:
        """Return its value, None while it has none."""
        try:
            return self._read()
        except (AttributeError, LookupError, ValueError):
            return None


class _Attributes:
    """The attributes that an object has, be they its own or its class's, as they are stored."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def get(self, name: str) -> Any:
        """Return one without running code, None for none."""
        own = getattr(self._owner, "__dict__", {})
        if name in own:
            return own[name]
        found = next((vars(kind)[name] for kind in type(self._owner).__mro__ if name in vars(kind)), None)
        # Of an object with slots the class has where they are.
        return getattr(self._owner, name, None) if isinstance(found, MemberDescriptorType) else found


class Named:
    """The places that code names when some parts are called.

    Args:
        parts: Modules of a model, functions and other objects, each with its path in messages.

    Attributes:
        places: The places, in the order in which they were found.
        names: All names in the user's code that was found, and the texts in it, which may be names for `getattr`.
        iterators: The iterators and random generators among the values.
    """

    def __init__(self, parts: Iterable[Tuple[str, Any]]) -> None:
        self.places: List[Place] = []
        self.names: Set[str] = set()
        self.iterators: List[Any] = []
        self._known: Set[Tuple[int, str]] = set()
        # What was seen is kept while this looks: another object would get its `id`.
        self._seen: Dict[int, Any] = {}
        self._objects: List[Tuple[str, Any]] = []
        self._of_libraries: Dict[type, Set[str]] = {}
        parts = list(parts)
        self._inside = {id(part) for _, part in parts if isinstance(part, nn.Module)}
        self._objects += [(path, part) for path, part in parts if isinstance(part, nn.Module)]
        for path, part in parts:
            hooks = [part.__dict__[kind] for kind in HOOKS] if isinstance(part, nn.Module) else []
            self._visit(path, part)
            self._visit("self", hooks)
        while self._look_up():
            self._of_libraries.clear()
        if not _ASK_ENVIRONMENT.isdisjoint(self.names):
            self._add("os.environ", os.environ.__dict__, "_data")
        self._seen.clear()
        self._objects.clear()

    def _look_up(self) -> bool:
        """Look all names up in all objects; tells whether that has led to more of them."""
        before = len(self.names), len(self._objects)
        for path, found in self._objects:
            self._look_at(path, found)
        return before != (len(self.names), len(self._objects))

    def _add(self, name: str, holder: Any, key: str, owner: Any = None) -> Any:
        """Note a place, and return the value that is there."""
        value = holder.get(key)
        identity = (id(holder if owner is None else owner), key)
        if identity not in self._known:
            self._known.add(identity)
            if not isinstance(value, (ModuleType, type)):
                self.places.append(Place(name, holder, key))
        return value

    def _visit(self, path: str, value: Any, depth: int = 0) -> None:
        """Look at what a value is or holds."""
        # isinstance() would ask an object for its class, which some deprecated ones answer with a warning.
        kind = type(value)
        if issubclass(kind, _LEAVES) or id(value) in self._seen or id(value) in self._inside:
            return
        self._seen[id(value)] = value
        if issubclass(kind, (*GENERATORS, AnyIterator)):
            self.iterators.append(value)
        if issubclass(kind, _CONTAINERS):
            if depth < _DEEPEST and len(value) <= _MOST_ELEMENTS:
                for element in list(value.values() if issubclass(kind, (dict, MappingProxyType)) else value):
                    self._visit(path, element, depth + 1)
        elif kind in _WRAPPERS:
            self._visit(path, getattr(value, _WRAPPERS[kind]))
        elif issubclass(kind, FunctionType):
            self._enter(value)
        elif issubclass(kind, (MethodType, BuiltinFunctionType)):
            self._visit(path, value.__self__)
            self._visit(path, getattr(value, "__func__", None))
        elif kind is functools.partial:
            self._give(value.func, [*value.args, *value.keywords.values()])
            self._visit(path, value.func)
        elif issubclass(kind, weakref.ProxyTypes):
            with contextlib.suppress(ReferenceError):
                self._visit(path, value.__repr__.__self__)
        elif issubclass(kind, weakref.ref):
            self._visit(path, value())
        elif issubclass(kind, ContextVar):
            self._visit(path, self._add(value.name, _Variable(value.get), "", value))
        elif issubclass(kind, nn.Module):
            for module in value.modules():
                self._seen[id(module)] = module
                self._objects.append((path, module))
        elif issubclass(kind, ModuleType):
            if is_users_file(getattr(value, "__file__", None) or "<frozen>"):
                self._objects.append((path, value))
        elif _is_followed(value if issubclass(kind, type) else kind, _PASSIVE):
            self._objects.append((path, value))
            self._visit(path, getattr(value, "__wrapped__", None))

    def _enter(self, function: FunctionType) -> None:
        """Follow the names in a function of the user's own."""
        self._visit("", function.__dict__.get("__wrapped__"))
        if not is_users_file(function.__code__.co_filename):
            return
        outside = function.__globals__
        self.names |= _names_in(function.__code__)
        self._give(function, [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()])
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            if name != "__class__":
                read = functools.partial(getattr, cell, "cell_contents")
                self._visit(name, self._add(name, _Variable(read), name, cell))
        for name in sorted(_loaded_by(function.__code__, "LOAD_GLOBAL", "LOAD_NAME") & outside.keys()):
            self._visit(name, self._add(name, outside, name))
        package = outside.get("__package__") or ""
        parents = [package.rsplit(".", level)[0] + "." for level in range(package.count(".") + 1)] if package else []
        for name in sorted(_loaded_by(function.__code__, "IMPORT_NAME", "IMPORT_FROM")):
            for path in (name, *[parent + name for parent in parents]):
                self._visit(path, sys.modules.get(path))

    def _give(self, function: Any, given: List[Any]) -> None:
        """Note the arguments that a function has been given before it is called."""
        for value in given:
            name = f"an argument of {getattr(function, '__name__', 'a function')}"
            self._visit(name, self._add(name, _Variable(functools.partial(_same, value)), "", value))

    def _look_at(self, path: str, found: Any) -> None:
        """Look all names up in an object."""
        own = getattr(found, "__dict__", {})
        is_module, inside = isinstance(found, nn.Module), id(found) in self._inside
        if is_module and type(found).__module__.startswith("torch."):
            # Of PyTorch's layers only numbers such as rates can change, and functions
            names = {name for name, value in own.items() if isinstance(value, (float, *FUNCTIONS))}
        else:
            names = (self.names | self._look_at_class(found)) & own.keys()
        if is_module and not inside:
            # The weights of what is no part of the program are constants of it.
            for inner in (own[each] for each in _TENSORS):
                for name in inner:
                    self._add(f"{path}.{name}", inner, name)
        for name in sorted(names - OWN if is_module else names):
            place = f"{path}.{name}" if path else name
            self._visit(f"self.{name}" if inside else place, self._add(place, own, name, found))

    def _look_at_class(self, found: Any) -> Set[str]:
        """Follow what an object has from its class; returns the names in what a library's methods read of it."""
        kind = found if isinstance(found, type) else type(found)
        # Objects that are neither classes nor modules tell nobody when they get an attribute of their own.
        shared = kind is found or issubclass(kind, nn.Module)
        if shared and kind in self._of_libraries:
            return self._of_libraries[kind]
        bases = [base for base in kind.__mro__ if _is_followed(base, _PASSIVE)]
        names: Set[str] = set()
        entries, looked = (_ENTRIES | _MAKING if kind is found else _ENTRIES), -1
        while looked != (looked := len(names)):
            for base in bases:
                for name in sorted((self.names | entries | names) & vars(base).keys()):
                    of_library = _of_library(vars(base)[name])
                    if of_library is None:
                        holder, owner = (vars(base), base) if shared else (_Attributes(found), found)
                        self._visit(f"self.{name}", self._add(f"self.{name}", holder, name, owner))
                    else:
                        names |= of_library
        if shared:
            self._of_libraries[kind] = names
        return names


def _of_library(member: Any) -> Optional[Set[str]]:
    """Return the names in a method that a library has; None for the user's own, and for what is no method."""
    member = getattr(member, _WRAPPERS.get(type(member), ""), member)
    while isinstance(member, FunctionType) and "__wrapped__" in member.__dict__:
        member = member.__dict__["__wrapped__"]
    if not isinstance(member, FunctionType) or is_users_file(member.__code__.co_filename):
        return None
    return _names_in(member.__code__) if _is_followed(member, _HOSTS) else set()


@functools.lru_cache(maxsize=4096)
def _names_in(code: CodeType) -> Set[str]:
    """Return the names in code, and the texts that may be some; those of the functions within it included."""
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    texts = [text for text in code.co_consts if isinstance(text, str) and text.isidentifier()]
    return set(code.co_names).union(texts, *inner)


@functools.lru_cache(maxsize=4096)
def _loaded_by(code: CodeType, *operations: str) -> Set[str]:
    """Return the names that some operations in code have, those of the functions within it included."""
    inner = [_loaded_by(constant, *operations) for constant in code.co_consts if isinstance(constant, CodeType)]
    return {str(each.argval) for each in dis.get_instructions(code) if each.opname in operations}.union(*inner)


def _is_followed(defined: Any, passive: Container[str]) -> bool:
    """Tell whether what a class or function says counts, by who has defined it."""
    module = str(getattr(defined, "__module__", None))
    return module.split(".")[0] not in passive or module.startswith("torch.optim.")


def _same(value: Any) -> Any:
    return value
