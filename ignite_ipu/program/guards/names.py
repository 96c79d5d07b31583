"""Values that running code names: globals, closures, imports, and attributes of objects reached by these names.

The search begins at the functions that a call enters. The names in their code lead to objects and to other functions,
whose names are looked up in all objects found so far. The search does not track which function reads which object: a
value that is found and never read costs a comparison, and another program when it changes.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from itertools import chain
from types import CodeType, FunctionType
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

import numpy as np
import torch
from torch import nn

from ignite_ipu.program.forward.randomness import GENERATORS
from ignite_ipu.program.guards.values import (
    BOOKKEEPERS,
    CONTAINERS,
    FIXED,
    FUNCTIONS,
    elements_of,
    is_fixed,
    is_followed,
)
from ignite_ipu.program.tensors.raw import table_of
from ignite_ipu.program.user_code import OURS, Owner, is_users_file, loaded_by, owner_of, read_by
from ignite_ipu.torch_names.modules import (
    BUFFERS,
    MODULES,
    PARAMETERS,
    all_modules,
    attributes_of_modules,
    forward_hooks_of,
)

__all__ = ["Named"]

# The attributes that PyTorch gives every module, and those of them that hold weights.
_OWN = frozenset(attributes_of_modules())
_TENSORS = (PARAMETERS, BUFFERS, MODULES)
# The methods that a call of an object, or a look at it, runs without naming them, and those that make an object.
_ENTRIES = frozenset(["forward", "__call__", "__getattr__", "__getattribute__", "__getitem__", "__iter__", "__next__"])
_MAKING = frozenset(["__init__", "__new__", "__post_init__"])
_WRAPPERS = {property: "fget", staticmethod: "__func__", classmethod: "__func__", functools.cached_property: "func"}
_MOST_ELEMENTS = 1024
# Whose objects have nothing that a loop would change, but for torch's optimizers and their schedulers.
_PASSIVE = BOOKKEEPERS | {"torch", "numpy", "poptorch", "unittest"}
# Whose objects keep books of their own there.
_HOSTS = _PASSIVE | {"ignite", "ignite_ipu", "accelerate"}
_FINDING = ("__getattr__", "__getattribute__")
# Values that lead to no others; and values of a library's layers that code elsewhere may read: rates, and functions.
_PLAIN = (*FIXED, torch.Tensor, np.ndarray)
_CHANGING = (float, *FUNCTIONS)
# Types of most attributes of a layer, known without a look at their bases.
_SURELY_FIXED = frozenset([int, float, bool, str, type(None)])
_SURELY_UNCHANGING = frozenset([int, bool, str, type(None), dict, OrderedDict, set, list, tuple])
_ITERATORS = (*GENERATORS, Iterator)
# How values are inspected, by the first of these types that they have.
_SORTS: Dict[str, Any] = {
    "plain": _PLAIN,
    "mapping": (dict, types.MappingProxyType),
    "container": CONTAINERS,
    "function": FunctionType,
    "method": (types.MethodType, types.BuiltinFunctionType),
    "partial": partial,
    "proxy": weakref.ProxyTypes,
    "reference": weakref.ref,
    "context": ContextVar,
    "network": nn.Module,
    "module": types.ModuleType,
    "class": type,
    "object": object,
}


class _LastFound(Exception):
    """Ends a search at the function that it was made for."""


class Named:
    """The places that code names when some parts are called.

    Args:
        parts: Modules of a model, functions and other objects, each with its path in messages.
        until: Returns for the code of a function of the user's whether it is the last one to find; the search ends
            with it, and its results have what was found before.

    Attributes:
        places: Name of each place in messages -> function that returns the current value there, or None.
        settings: Attributes of a module that a library's code reads, as numbers and flags: path of the module, its
            attributes, and their names.
        owners: Owner of each place (a dictionary, a cell, a class or an object) with its name there, and the globals
            that code sets.
        objects: The objects in which names were looked up.
        classes: The user's own classes in which they were.
        absent: Names of modules that code imports and that were not imported yet.
        names: All names that the user's code reads, and its string literals, which may be for `getattr`.
        iterators: The iterators and random generators among the values.
        functions: The user's functions that were found.
    """

    def __init__(self, parts: Iterable[Tuple[str, Any]], until: Optional[Callable[[CodeType], bool]] = None) -> None:
        self._until = until
        self.places: List[Tuple[str, Callable[[], Any]]] = []
        self.settings: List[Tuple[str, Dict[str, Any], Tuple[str, ...]]] = []
        self.owners: List[Tuple[Any, str]] = []
        self.names: Set[str] = set()
        self.iterators: List[Any] = []
        self.absent: List[str] = []
        self.functions: List[FunctionType] = []
        self._known: Set[Tuple[int, str]] = set()
        # Inspected objects are kept during the inspection: another object would get their `id`.
        self._seen: Dict[int, Any] = {}
        # The names in the order in which they were found, and how many of them were looked up in each object.
        self._found: List[str] = []
        self._looked: Dict[int, int] = {}
        parts = list(parts)
        self._objects = [(path, part) for path, part in parts if isinstance(part, nn.Module)]
        # The user's own classes among the bases of each, and the objects in which no names are looked up.
        self._own: Dict[type, List[type]] = {}
        self._classes = _Classes()
        self._settled: Set[int] = set()
        self._sorts: Dict[type, Tuple[str, bool]] = {}
        # The names that the libraries' code in each class reads.
        self._read: Dict[type, Set[str]] = {}
        self._inside = {id(part) for _, part in self._objects}
        with contextlib.suppress(_LastFound):
            self._search(parts)
        self.objects: List[Any] = [found for _, found in self._objects]
        self.classes: List[type] = [*dict.fromkeys(chain.from_iterable(self._own.values()))]

    def values(self) -> Iterator[Tuple[str, Any]]:
        """Yield the current value at each place, and of each setting, with its name."""
        for name, read in self.places:
            yield name, read()
        for path, attributes, names in self.settings:
            for name in names:
                yield f"{path}.{name}", attributes.get(name)

    def _search(self, parts: List[Tuple[str, Any]]) -> None:
        for path, part in parts:
            if not isinstance(part, nn.Module):  # these are looked at below
                self._visit(path, part)
                continue
            for hooks in filter(None, forward_hooks_of(vars(part))):
                self._visit("self", hooks)
        before = (-1, -1)
        while before != (before := (len(self.names), len(self._objects))):
            for path, found in self._objects:
                if id(found) not in self._settled:
                    self._look_at(path, found)
        if self.names & {"environ", "getenv"}:
            self._add("os.environ", partial(getattr, os.environ, "_data"), os.environ)

    def _add(self, name: str, read: Callable[[], Any], owner: Any, key: str = "", path: str = "") -> None:
        """Note a new place, and look at the value that is there, which messages call `path` if it leads to others."""
        place = (id(owner), key)
        if place in self._known:
            return
        self._known.add(place)
        value = read()
        if not isinstance(value, (types.ModuleType, type)):
            self.places.append((name, read))
            self.owners.append((owner, key))
        self._visit(path or name, value)

    def _visit(self, path: str, value: Any) -> None:
        """Inspect a value and its parts."""
        # isinstance() would ask an object for its class, which some deprecated ones answer with a warning.
        kind = type(value)
        known = self._sorts.get(kind)
        if known is None:
            sort = next(name for name, kinds in _SORTS.items() if issubclass(kind, kinds))
            known = self._sorts[kind] = sort, issubclass(kind, _ITERATORS)
        sort, iterates = known
        number = id(value)
        if sort == "plain" or number in self._seen or number in self._inside:
            return
        self._seen[number] = value
        if iterates:
            self.iterators.append(value)
        if sort == "mapping" or sort == "container":
            elements = elements_of(value)
            if elements and len(elements) <= _MOST_ELEMENTS:
                # Most elements are plain, and take no visit.
                sorts, plain = self._sorts, ("plain", False)
                for element in chain.from_iterable(list(elements)) if sort == "mapping" else list(elements):
                    if sorts.get(type(element)) != plain:
                        self._visit(path, element)
        elif kind in _WRAPPERS:
            self._visit(path, getattr(value, _WRAPPERS[kind]))
        elif sort == "function":
            self._enter(value)
        elif sort == "method":
            self._visit(path, value.__self__)
            self._visit(path, getattr(value, "__func__", None))
        elif sort == "partial":
            self._give("an argument", value.func, value, "args", "keywords")
            self._visit(path, value.func)
        elif sort == "proxy":
            self._visit(path, _tried(lambda: value.__repr__.__self__))
        elif sort == "reference":
            self._visit(path, value())
        elif sort == "context":
            self._add(value.name, partial(_tried, value.get), value)
        elif sort == "network":
            modules = all_modules(value)
            self._seen.update((id(module), module) for module in modules)
            self._objects += [(path, module) for module in modules]
        elif sort == "module":
            if is_users_file(getattr(value, "__file__", None) or "<frozen>"):
                self._objects.append((path, value))
        elif is_followed(value if sort == "class" else kind, _PASSIVE):
            self._objects.append((path, value))
            self._visit(path, inspect.getattr_static(value, "__wrapped__", None))

    def _enter(self, function: FunctionType) -> None:
        """Follow the names in a function of the user's own."""
        wrapped = vars(function).get("__wrapped__")
        if wrapped is not None:
            self._visit("", wrapped)
        code, outside = function.__code__, function.__globals__
        if not is_users_file(code.co_filename):
            return
        self.functions.append(function)
        new = read_by(code) - self.names
        self.names |= new
        self._found += new
        if self._until is not None and self._until(code):
            raise _LastFound
        self.owners += [(outside, name) for name in loaded_by(code, "STORE_GLOBAL")]
        self._give("a default argument", function, function, "__defaults__", "__kwdefaults__")
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            if name != "__class__":
                self._add(name, partial(_tried, getattr, cell, "cell_contents"), cell, name)
        for name in sorted(loaded_by(code, "LOAD_GLOBAL", "LOAD_NAME") & outside.keys()):
            self._add(name, partial(outside.get, name), outside, name)
        package = outside.get("__package__") or ""
        parents = [package.rsplit(".", level)[0] + "." for level in range(package.count(".") + 1)] if package else []
        for name in sorted(loaded_by(code, "IMPORT_NAME", "IMPORT_FROM")):
            for parent in ("", *parents):
                module = sys.modules.get(parent + name)
                if module is None:
                    self.absent.append(parent + name)
                self._visit(parent + name, module)

    def _give(self, kind: str, function: Any, owner: Any, *where: str) -> None:
        """Note the arguments that a function has before it is called, which messages call by their kind."""
        name = f"{kind} of {getattr(function, '__name__', 'a function')}"
        for each in where:
            self._add(name, partial(getattr, owner, each), owner, each)

    def _set(self, path: str, module: nn.Module, own: Dict[str, Any]) -> Set[str]:
        """Note the settings of a module, which its library's code reads; returns their names."""
        kind = type(module)
        read = self._read.get(kind)
        if read is None:
            read = self._read[kind] = _read_by_libraries(kind) - _OWN
        names = tuple(
            [name for name in own if name in read and (type(own[name]) in _SURELY_FIXED or is_fixed(own[name]))]
        )
        if names and (id(own), "") not in self._known:
            self._known.add((id(own), ""))
            self.settings.append((path, own, names))
        return set(names)

    def _look_at(self, path: str, found: Any) -> None:
        """Look the names up in an object, and in its class, that were not looked up there before."""
        number = id(found)
        looked = self._looked.get(number)
        self._looked[number] = len(self._found)
        if looked == len(self._found):
            return
        is_first, new = looked is None, self.names if not looked else set(self._found[looked:])
        own = getattr(found, "__dict__", {})
        is_class, is_module = isinstance(found, type), isinstance(found, nn.Module)
        kind = found if is_class else type(found)
        if kind not in self._own:
            # A part may be captured meanwhile, whose class then has members that are none of the user's.
            self._own[kind] = list(filter(self._classes.are_users_own, kind.__mro__))
        bases = self._own[kind]
        entries, in_class = new | (_ENTRIES | _MAKING if is_class else _ENTRIES) if is_first else new, set()
        # An object may have an entry of its own in front of that of its class, such as a replaced `forward`.
        names = (new if is_class else entries) & own.keys()
        for base in bases:
            members = vars(base)
            for name in sorted(entries & members.keys()):
                in_class.add(name)
                self._add(f"self.{name}", partial(members.get, name), base, name)
                if isinstance(members[name], types.MemberDescriptorType) and not is_class:
                    self._add(f"self.{name}", partial(getattr, found, name, None), found, name)
        if is_module:
            if not bases:
                self._settled.add(number)
            if not bases or not self._classes.is_users(kind):
                names = {
                    name
                    for name, value in own.items()
                    if type(value) not in _SURELY_UNCHANGING and isinstance(value, _CHANGING)
                }
            names = (names | ({"config"} & own.keys())) - _OWN
            names -= self._set(path, found, own)
            # Weights of models outside of the program are constants of it.
            outside = is_first and number not in self._inside
            for inner in [table_of(found, each) for each in _TENSORS] if outside else ():
                for name in list(inner.keys()):  # TorchScript's tables have little else of a dictionary
                    self._add(f"{path}.{name}", partial(_tried, inner.__getitem__, name), inner, name)
        elif not is_class:
            finds = [isinstance(getattr(kind, name, None), FunctionType) for name in _FINDING]
            if not self._classes.is_users(kind) and is_followed(kind, _HOSTS):
                # The attributes that a library's methods and properties read, or all if it finds attributes in its own
                # way.
                names |= {name for name in own if name.startswith("_") or any(finds)}
            # It does not report an attribute of its own, in front of that of its class.
            names |= in_class
        for name in [*filter(names.__contains__, [*own]), *sorted(names - own.keys())]:
            place = f"{path}.{name}" if path else name
            leads = f"self.{name}" if number in self._inside else place
            self._add(place, partial(own.get, name), found, name, leads)


def _read_by_libraries(kind: type) -> Set[str]:
    """Return the attributes that the libraries' code of a call of a module reads, and does not set itself."""
    bases = [base for base in kind.__mro__ if issubclass(base, nn.Module) and base is not nn.Module]
    read: Set[str] = {"forward"}
    stored: Set[str] = set()
    entered: Set[str] = set()
    while new := read - entered:
        entered |= new
        for function in [vars(base).get(name) for base in bases for name in new]:
            function = function.fget if isinstance(function, property) else function
            code = getattr(function, "__code__", None)
            if code is not None and not is_users_file(code.co_filename) and not code.co_filename.startswith(OURS):
                read |= read_by(code)
                stored |= loaded_by(code, "STORE_ATTR")
    return read - stored


class _Classes:
    """Classes by their authors, during one search: their methods may be others in the next one."""

    def __init__(self) -> None:
        # Whether each is the user's, and whether it is derived here from a user's, as captured models are.
        self._known: Dict[type, Tuple[bool, bool]] = {}

    def is_users(self, kind: type) -> bool:
        """Return whether a class is the user's: by its methods' files, as another module may bear its module's name."""
        return self._look_up(kind)[0]

    def are_users_own(self, kind: type) -> bool:
        """Return whether the members of a class are the user's."""
        is_users, is_derived_here = self._look_up(kind)
        return is_users and not is_derived_here

    def _look_up(self, kind: type) -> Tuple[bool, bool]:
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = self._found(kind)
        return known

    def _found(self, kind: type) -> Tuple[bool, bool]:
        if not is_followed(kind, _PASSIVE):
            return False, False
        files = _files_of(kind)
        if _are_libraries(files):
            return self.is_users(kind.__mro__[1]), True
        files = files or {getattr(sys.modules.get(kind.__module__), "__file__", None) or "<unknown>"}
        return any(map(is_users_file, files)), False


def _are_libraries(files: Set[str]) -> bool:
    return bool(files) and all(owner_of(file) is Owner.LIBRARY for file in files)


def _files_of(kind: type) -> Set[str]:
    members = [member for member in vars(kind).values() if type(member) is FunctionType]
    functions = [inspect.unwrap(member) if "__wrapped__" in vars(member) else member for member in members]
    files = {function.__code__.co_filename for function in functions if isinstance(function, FunctionType)}
    return files - {"<string>"}  # methods that dataclasses and named tuples generate


def _tried(read: Callable[..., Any], *given: Any) -> Any:
    """Return the read value, None for a variable without a value."""
    try:
        return read(*given)
    except (LookupError, ValueError, ReferenceError):
        return None
