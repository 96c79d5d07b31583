"""Values that running code names: globals, closures, imports, and attributes of whatever it gets at by these names.

From the functions that a call enters, the names in their code lead to objects and to other functions, whose names are
looked up in all objects that were found. Which function reads which object is not asked: a value that is found and not
read costs a comparison, and another program when it changes.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from types import FunctionType
from typing import Any, Callable, Container, Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Set, Tuple

import numpy as np
import torch
from torch import nn

from ignite_ipu.program.forward.randomness import GENERATORS
from ignite_ipu.program.guards.values import FIXED, FUNCTIONS, MAPPINGS, SEQUENCES, SETS, items_of
from ignite_ipu.program.user_code import is_users_file, loaded_by, names_in, read_by

__all__ = ["BOOKKEEPERS", "HOOKS", "Named", "Place", "is_followed"]

HOOKS = ("_forward_hooks", "_forward_pre_hooks")
"""The attributes of a module that hold functions which a call of it runs."""

# The attributes that PyTorch gives every module, and those of them that hold weights.
_OWN = frozenset([*vars(nn.Module()), "_is_full_backward_hook", "_forward_hooks_always_called"])
_TENSORS = ("_parameters", "_buffers", "_modules")
# The methods that a call of an object, or a look at it, runs without naming them, and those that make an object.
_ENTRIES = frozenset(["forward", "__call__", "__getattr__", "__getattribute__", "__getitem__", "__iter__", "__next__"])
_MAKING = frozenset(["__init__", "__new__", "__post_init__"])
_LEAVES = (*FIXED, torch.Tensor, np.ndarray)
_WRAPPERS = {property: "fget", staticmethod: "__func__", classmethod: "__func__", functools.cached_property: "func"}
_DEEPEST = 4
_MOST_ELEMENTS = 1024
BOOKKEEPERS = frozenset(["builtins", "logging", "threading", "_thread", "io", "_io", "random", "weakref", "_weakref"])
"""Packages whose objects keep books of their own, which no forward computes from."""

# Whose objects have nothing that a loop would change, but for torch's optimizers and their schedulers.
_PASSIVE = BOOKKEEPERS | {"torch", "numpy", "poptorch", "unittest"}
# Whose code does not say what a call of a model reads.
_HOSTS = _PASSIVE | {"ignite", "ignite_ipu", "accelerate"}


class Place(NamedTuple):
    """Place where code finds a value.

    Attributes:
        name: What messages call it.
        read: Returns the value of this moment, None where there is none.
    """

    name: str
    read: Callable[[], Any]


class Named:
    """The places that code names when some parts are called.

    Args:
        parts: Modules of a model, functions and other objects, each with its path in messages.
        everything: Whether all attributes of objects count, whatever their names.

    Attributes:
        places: The places, in the order in which they were found.
        names: All names in the user's code that was found, and the texts in it, which may be names for `getattr`.
        read: Those of them that some code does not only assign to.
        iterators: The iterators and random generators among the values.
        codes: The code of the user's functions that were found.
    """

    def __init__(self, parts: Iterable[Tuple[str, Any]], everything: bool = False) -> None:
        self.places: List[Place] = []
        self.names: Set[str] = set()
        self.read: Set[str] = set()
        self.iterators: List[Any] = []
        self.codes: List[types.CodeType] = []
        self._everything, self._passive = everything, BOOKKEEPERS if everything else _PASSIVE
        self._known: Set[Tuple[int, str]] = set()
        # What was seen is kept while this looks: another object would get its `id`.
        self._seen: Dict[int, Any] = {}
        self._of_classes: Dict[Tuple[type, bool], Tuple[Set[str], Dict[str, Any]]] = {}
        parts = list(parts)
        self._objects = [(path, part) for path, part in parts if isinstance(part, nn.Module) and not everything]
        self._inside = set() if everything else {id(part) for _, part in self._objects}
        for path, part in parts:
            self._visit(path, part)
            self._visit("self", [vars(part)[kind] for kind in HOOKS] if isinstance(part, nn.Module) else [])
        before = (-1, -1)
        while before != (before := (len(self.names), len(self._objects))):
            for path, found in self._objects:
                self._look_at(path, found)
            self._of_classes.clear()
            if everything:
                break  # names lead to nothing more
        if self.names & {"environ", "getenv"}:
            self._add("os.environ", partial(getattr, os.environ, "_data"), os.environ)

    def _add(self, name: str, read: Callable[[], Any], owner: Any, key: str = "", path: str = "") -> None:
        """Note a place, and look at the value that is there, which messages call `path` if it leads to others."""
        value = read()
        if (id(owner), key) not in self._known:
            self._known.add((id(owner), key))
            if not isinstance(value, (types.ModuleType, type)):
                self.places.append(Place(name, read))
        self._visit(path or name, value)

    def _visit(self, path: str, value: Any, depth: int = 0) -> None:
        """Look at what a value is or holds."""
        # isinstance() would ask an object for its class, which some deprecated ones answer with a warning.
        kind = type(value)
        if issubclass(kind, _LEAVES) or id(value) in self._seen or id(value) in self._inside:
            return
        self._seen[id(value)] = value
        if issubclass(kind, (*GENERATORS, Iterator)):
            self.iterators.append(value)
        if issubclass(kind, (*MAPPINGS, *SEQUENCES, *SETS)):
            elements = items_of(value) if issubclass(kind, MAPPINGS) else value
            if self._everything or (depth < _DEEPEST and len(elements) <= _MOST_ELEMENTS):
                for element in [item for _, item in elements] if issubclass(kind, MAPPINGS) else list(value):
                    self._visit(path, element, depth + 1)
        elif kind in _WRAPPERS:
            self._visit(path, getattr(value, _WRAPPERS[kind]))
        elif issubclass(kind, FunctionType):
            self._enter(value)
        elif issubclass(kind, (types.MethodType, types.BuiltinFunctionType)):
            self._visit(path, value.__self__)
            self._visit(path, getattr(value, "__func__", None))
        elif issubclass(kind, partial):
            self._give(value.func, value, "args", "keywords")
            self._visit(path, value.func)
        elif issubclass(kind, weakref.ProxyTypes):
            self._visit(path, _tried(lambda: value.__repr__.__self__))
        elif issubclass(kind, weakref.ref):
            self._visit(path, value())
        elif issubclass(kind, ContextVar):
            self._add(value.name, partial(_tried, value.get), value)
        elif issubclass(kind, nn.Module):
            self._seen.update((id(module), module) for module in value.modules())
            self._objects += [(path, module) for module in value.modules()]
        elif issubclass(kind, types.ModuleType):
            if not self._everything and is_users_file(getattr(value, "__file__", None) or "<frozen>"):
                self._objects.append((path, value))
        elif is_followed(value if issubclass(kind, type) else kind, self._passive):
            self._objects.append((path, value))
            self._visit(path, inspect.getattr_static(value, "__wrapped__", None))

    def _enter(self, function: FunctionType) -> None:
        """Follow the names in a function of the user's own."""
        self._visit("", vars(function).get("__wrapped__"))
        code, outside = function.__code__, function.__globals__
        if self._everything or not is_users_file(code.co_filename):
            return
        self.codes.append(code)
        self.names |= names_in(code)
        self.read |= read_by(code)
        self._give(function, function, "__defaults__", "__kwdefaults__")
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            if name != "__class__":
                self._add(name, partial(_tried, getattr, cell, "cell_contents"), cell, name)
        for name in sorted(loaded_by(code, "LOAD_GLOBAL", "LOAD_NAME") & outside.keys()):
            self._add(name, partial(outside.get, name), outside, name)
        package = outside.get("__package__") or ""
        parents = [package.rsplit(".", level)[0] + "." for level in range(package.count(".") + 1)] if package else []
        for name in sorted(loaded_by(code, "IMPORT_NAME", "IMPORT_FROM")):
            for path in (name, *[parent + name for parent in parents]):
                self._visit(path, sys.modules.get(path))

    def _give(self, function: Any, owner: Any, *where: str) -> None:
        """Note the arguments that a function has been given before it is called."""
        for each in where:
            name = f"an argument of {getattr(function, '__name__', 'a function')}"
            self._add(name, partial(getattr, owner, each), owner, each)

    def _look_at(self, path: str, found: Any) -> None:
        """Look all names up in an object."""
        own = getattr(found, "__dict__", {})
        is_class, is_module, inside = isinstance(found, type), isinstance(found, nn.Module), id(found) in self._inside
        if is_module and type(found).__module__.startswith("torch."):
            # Of PyTorch's layers only numbers such as rates can change, and functions.
            names = {name for name, value in own.items() if isinstance(value, (float, *FUNCTIONS))}
        else:
            of_library, in_class = self._look_at_class(found if is_class else type(found), is_class)
            names = (self.names | of_library) & own.keys()
            if self._everything and not is_class:
                names.update(own)
            elif type(found).__module__.startswith("transformers.") and not is_module:
                # A configuration, which the library's code reads.
                names.update(name for name, value in own.items() if isinstance(value, FIXED))
            if not is_class and not is_module:
                # It tells nobody when it gets an attribute of its own, in front of that of its class.
                names |= in_class.keys()
                for name in sorted(name for name in in_class if isinstance(in_class[name], types.MemberDescriptorType)):
                    self._add(f"self.{name}", partial(getattr, found, name, None), found, name)
        if is_module and not inside:
            # The weights of what is no part of the program are constants of it.
            for inner in (own[each] for each in _TENSORS):
                for name in inner:
                    self._add(f"{path}.{name}", partial(inner.get, name), inner, name)
        names -= _OWN if is_module else set()
        for name in [*filter(names.__contains__, [*own]), *sorted(names - own.keys())]:
            place = f"{path}.{name}" if path else name
            self._add(place, partial(own.get, name), found, name, f"self.{name}" if inside else place)

    def _look_at_class(self, kind: type, made: bool) -> Tuple[Set[str], Dict[str, Any]]:
        """Follow what objects have from a class, which they are made of where the code names it.

        Returns:
            The names in what a library's methods read, and what there is in the class under names that count.
        """
        if (kind, made) in self._of_classes:
            return self._of_classes[kind, made]
        names: Set[str] = set()
        in_class: Dict[str, Any] = {}
        entries, looked = (_ENTRIES | _MAKING if made else _ENTRIES), -1
        while looked != (looked := len(names)):
            for base in (base for base in kind.__mro__ if is_followed(base, _PASSIVE)):
                plain = [name for name in vars(base) if not name.startswith("__")] if self._everything else ()
                for name in sorted((self.names | entries | names).union(plain) & vars(base).keys()):
                    of_library = _of_library(vars(base)[name])
                    if of_library is None:
                        in_class.setdefault(name, vars(base)[name])
                        self._add(f"self.{name}", partial(vars(base).get, name), base, name)
                    else:
                        names |= of_library
                        self.read |= of_library
        self._of_classes[kind, made] = names, in_class
        return names, in_class


def _tried(read: Callable[..., Any], *given: Any) -> Any:
    """Return what is read, None for a variable that has no value yet or any more."""
    try:
        return read(*given)
    except (LookupError, ValueError, ReferenceError):
        return None


def _of_library(member: Any) -> Optional[FrozenSet[str]]:
    """Return the names in a method that a library has; None for the user's own, and for what is no method."""
    member = getattr(member, _WRAPPERS.get(type(member), ""), member)
    while isinstance(member, FunctionType) and "__wrapped__" in vars(member):
        member = vars(member)["__wrapped__"]
    if not isinstance(member, FunctionType) or is_users_file(member.__code__.co_filename):
        return None
    return names_in(member.__code__) if is_followed(member, _HOSTS) else frozenset()


def is_followed(defined: Any, passive: Container[str]) -> bool:
    """Tell whether what a class or function says counts, by who has defined it."""
    module = str(getattr(defined, "__module__", None))
    return module.split(".")[0] not in passive or module.startswith("torch.optim.")
