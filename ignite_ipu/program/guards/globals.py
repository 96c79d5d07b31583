"""Values that code reads by name from outside: globals, closure variables, imports, what hangs on these or on `self`.

A compiled program has them as constants, like everything in Python. Only the user's own code is searched: what
libraries keep in their globals is nobody's to anneal.
"""

from __future__ import annotations

import dis
import functools
import importlib.util
import sys
import weakref
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Container, FrozenSet, Iterator, List, Mapping, NamedTuple, Optional, Protocol, Sequence, Tuple

from torch import nn

from ignite_ipu.program.guards.reads import is_read, stored_attribute
from ignite_ipu.program.user_code import is_users_file

__all__ = ["Holder", "Inherited", "OuterValue", "outer_objects", "outer_values"]

# What each class has of the user's own functions.
_METHODS: weakref.WeakKeyDictionary[type, List[FunctionType]] = weakref.WeakKeyDictionary()
_GLOBAL, _CELL, _SELF, _IMPORTED = "global", "closure", "self", "imported"
# What may be between an import and the variable that it sets.
_SHUFFLES = frozenset(["ROT_TWO", "SWAP", "POP_TOP"])
_WITHOUT_MEANING = frozenset(["EXTENDED_ARG", "CACHE"])
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_NEVER_OTHERS = (ModuleType, type)
# The methods that a call of an object, or a look at it, runs without naming them.
_ENTRIES = ("forward", "__call__", "__getattr__", "__getattribute__", "__getitem__", "__iter__", "__next__")


class Holder(Protocol):
    """Place where a value is looked up: the dictionary of a module or an object, or a closure's variable."""

    def get(self, name: str) -> Any:
        """Return the value of this moment, None for none."""


class OuterValue(NamedTuple):
    """One value that some code reads, or an object on the way to it.

    Attributes:
        name: What messages call it.
        holder, key: Where it is.
        value: The value when it was found.
    """

    name: str
    holder: Holder
    key: str
    value: Any


class _Path(NamedTuple):
    """A name with the attributes that code reads from it."""

    scope: str
    names: Tuple[str, ...]


class _Cell:
    """A variable of an enclosing function."""

    def __init__(self, cell: Any) -> None:
        self._cell = cell

    def get(self, name: str) -> Any:
        """Return its value, None while it has none."""
        try:
            return self._cell.cell_contents
        except ValueError:
            return None


class _Given:
    """An argument."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self, name: str) -> Any:
        """Return it."""
        return self._value


class Inherited:
    """The attributes that an object has from its class, until it is given its own."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def get(self, name: str) -> Any:
        """Return one, None for none."""
        return stored_attribute(self.owner, name)


def outer_values(called: Any, kinds: Tuple[type, ...], training: Optional[bool] = None) -> Iterator[OuterValue]:
    """Yield the values of some kinds that the user's code reads by name when something is called.

    Before each come the objects that lead to it: with another of these it would be another value.

    Args:
        called: A function, a module or another object that can be called.
        kinds: Types of the values.
        training: What hangs on `self` counts if calls for training, or for evaluation, were seen to read that; all of
            it when None.
    """
    for part in _parts(called):
        for function in (part, *_functions_of(part)):
            yield from (given for given in _arguments_of(function) if isinstance(given.value, kinds))
    for _, steps, leads_on in _found(called, kinds, training):
        if leads_on or not isinstance(steps[-1].value, _NEVER_OTHERS):
            yield from steps
            yield from (given for given in _arguments_of(steps[-1].value) if isinstance(given.value, kinds))


def outer_objects(called: Any, kinds: Tuple[type, ...]) -> Iterator[Any]:
    """Yield the objects, and values of some kinds, that the user's code gets at by name when something is called.

    The functions that a call reaches by name are among them. What hangs on `self` is left out.

    Args:
        called, kinds: As for `outer_values`.
    """
    for part in _parts(called):
        yield part
        for function in (part, *_functions_of(part)):
            yield from (given.value for given in _arguments_of(function))
    for path, steps, _ in _found(called, kinds, None):
        if path.scope != _SELF:
            yield from (step.value for step in (*steps, *_arguments_of(steps[-1].value)))
    yield from _reached(called, kinds)


def _reached(called: Any, kinds: Tuple[type, ...]) -> Iterator[FunctionType]:
    """Yield the user's own functions that a call reaches by names, from where it enters."""
    waiting = [(function, part) for part in _parts(called) for function in _entries(part)]
    known = {function for function, _ in waiting}
    while waiting:
        function, instance = waiting.pop()
        yield function
        for path in _paths(function.__code__):
            steps = _steps(path, function, getattr(instance, "__self__", instance), kinds)
            for part, own in _called(steps[-1]) if steps else ():
                new = [each for each in _entries(part) if each not in known]
                known.update(new)
                waiting += [(each, own) for each in new]


def _entries(called: Any) -> List[FunctionType]:
    """Return the user's own functions that run first in a call: the function itself, or those of an object's class."""
    if isinstance(called, (list, tuple, dict)):
        elements = called.values() if isinstance(called, dict) else called
        return list(filter(_is_users, map(_unwrapped, elements)))
    called = _unwrapped(called)
    if _is_users(called):
        return [called]
    kind = type(called)
    return [*filter(_is_users, (_unwrapped(getattr(kind, name, None)) for name in _ENTRIES))]


def _found(
    called: Any, kinds: Tuple[type, ...], training: Optional[bool]
) -> Iterator[Tuple[_Path, List[OuterValue], bool]]:
    """Yield the names that code reads, what is found along each, and whether there is more code at its end."""
    waiting = [
        (function, getattr(part, "__self__", part)) for part in _parts(called) for function in _functions_of(part)
    ]
    known = {(id(function), id(instance)) for function, instance in waiting}
    while waiting:
        function, instance = waiting.pop()
        for path in _paths(function.__code__):
            if path.scope == _SELF and path.names[1:] and not is_read(instance, path.names[1], training):
                continue
            steps = _steps(path, function, instance, kinds)
            if not steps:
                continue
            leads_on = False
            if not isinstance(steps[-1].value, kinds):
                for part, own in _called(steps[-1]):
                    new = [each for each in _functions_of(part) if (id(each), id(own)) not in known]
                    leads_on |= bool(new)
                    known.update((id(each), id(own)) for each in new)
                    waiting += [(each, own) for each in new]
            yield path, steps, leads_on


def _arguments_of(called: Any) -> Iterator[OuterValue]:
    """Yield the arguments that the user's own function has been given before it is called."""
    given: List[Any] = []
    while isinstance(called, functools.partial):
        given += [*called.args, *called.keywords.values()]
        called = called.func
    function = _unwrapped(called)
    if _is_users(function):
        given += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for value in given:
        yield OuterValue(f"an argument of {getattr(function, '__name__', 'a function')}", _Given(value), "", value)


def _parts(called: Any) -> Iterator[Any]:
    """Yield something that can be called, and the hooks on it."""
    yield called
    if isinstance(called, nn.Module):
        for kind in _HOOKS:
            yield from called.__dict__[kind].values()


def _called(found: OuterValue) -> Iterator[Tuple[Any, Any]]:
    """Yield what may be called when code names a value, each with what `self` is in it."""
    if isinstance(found.value, nn.Module):
        yield from ((module, module) for module in found.value.modules())
    else:
        yield found.value, found.holder.owner if isinstance(found.holder, Inherited) else found.value


def _functions_of(called: Any) -> List[FunctionType]:
    """Return the user's own functions that a call may run: itself, its methods, and functions it has been given."""
    called = _unwrapped(called)
    if _is_users(called):
        return [called]
    kind = type(called)
    methods = _METHODS.get(kind)
    if methods is None:
        members = [
            _unwrapped(value) for base in kind.__mro__ for name, value in vars(base).items() if name != "__init__"
        ]
        methods = _METHODS[kind] = list(filter(_is_users, members))
    return [*methods, *filter(_is_users, getattr(called, "__dict__", {}).values())]


def _unwrapped(member: Any) -> Any:
    """Return the function that a property or a kind of method holds."""
    if isinstance(member, property):
        return member.fget
    if isinstance(member, functools.partial):
        return _unwrapped(member.func)
    return member.__func__ if isinstance(member, (staticmethod, classmethod, MethodType)) else member


def _steps(path: _Path, function: FunctionType, instance: Optional[Any], kinds: Tuple[type, ...]) -> List[OuterValue]:
    """Return what is found along a path, up to the first value of one of the kinds."""
    first, *rest = path.names
    steps: List[OuterValue] = []
    if path.scope == _SELF:
        value = instance
    else:
        holder: Any = function.__globals__
        if path.scope == _IMPORTED:
            holder = sys.modules
            package = function.__globals__.get("__package__")
            if first.startswith("."):
                if not package or len(first) - len(first.lstrip(".")) > package.count(".") + 1:
                    return []
                first = importlib.util.resolve_name(first, package)
        elif path.scope == _CELL:
            holder = _Cell((function.__closure__ or ())[function.__code__.co_freevars.index(first)])
        value = holder.get(first)
        steps.append(OuterValue(first, holder, first, value))
    for depth, name in enumerate(rest, 2):
        holder = None if value is None or isinstance(value, kinds) else _attributes_with(name, value)
        if holder is None:
            break
        value = holder.get(name)
        steps.append(OuterValue(".".join(path.names[:depth]), holder, name, value))
    return steps


def _attributes_with(name: str, value: Any) -> Optional[Any]:
    """Return where an attribute of a value is: its own dictionary, or what its class has; None where it is nowhere."""
    if isinstance(value, ModuleType) and not is_users_file(getattr(value, "__file__", None) or "<frozen>"):
        return None
    own = getattr(value, "__dict__", {})
    if name in own:
        return own
    inherited = Inherited(value)
    return None if inherited.get(name) is None else inherited


def _is_users(function: Any) -> bool:
    """Tell whether something is a function of the user's own, and no library's."""
    # isinstance() would ask an object for its class, which some deprecated ones answer with a warning.
    return issubclass(type(function), FunctionType) and is_users_file(function.__code__.co_filename)


@functools.lru_cache(maxsize=None)
def _paths(code: CodeType) -> FrozenSet[_Path]:
    """Return the names that code reads from outside, those of the functions within it included."""
    return frozenset(_read_by(code, code.co_varnames[0] if code.co_argcount else None, frozenset(code.co_freevars)))


def _read_by(
    code: CodeType, own: Optional[str], free: FrozenSet[str], outside: Mapping[str, Tuple[str, ...]] = {}
) -> Iterator[_Path]:
    instructions = [each for each in dis.get_instructions(code) if each.opname not in _WITHOUT_MEANING]
    # Of variables, the module that was imported, and what of it.
    imported = dict(outside)
    for number, instruction in enumerate(instructions):
        if instruction.opname == "IMPORT_NAME":
            level, wanted = [each.argval for each in instructions[number - 2 : number]]
            # Without a name that is wanted of it, a package comes instead of its module.
            module = "." * level + (instruction.argval if wanted else instruction.argval.partition(".")[0])
            found: Tuple[str, ...] = (module,)
        elif instruction.opname == "IMPORT_FROM":
            found = (*((module,) if wanted else found), instruction.argval)
            yield _Path(_IMPORTED, found)
        elif instruction.opname.startswith("STORE_") and _follows_import(instructions, number):
            imported[_names(instruction)[0]] = found
        scope, name = _scope(instruction, own, free, imported)
        if scope is None:
            continue
        names = [*imported[name]] if scope == _IMPORTED else [name]
        for following in instructions[number + 1 :]:
            if following.opname not in _ATTRIBUTE:
                break
            names.append(following.argval)
        yield _Path(scope, tuple(names))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = frozenset(constant.co_freevars)
            known = {name: path for name, path in imported.items() if name in inner}
            yield from _read_by(constant, own if own in inner else None, free & inner, known)


def _follows_import(instructions: Sequence[dis.Instruction], number: int) -> bool:
    """Tell whether an instruction stores what an import has given."""
    before = (each.opname for each in reversed(instructions[:number]) if each.opname not in _SHUFFLES)
    return next(before, "").startswith("IMPORT_")


def _names(instruction: dis.Instruction) -> Tuple[Any, ...]:
    """Return the variables of an instruction: later Pythons store and load two at once."""
    return instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)


def _scope(
    instruction: dis.Instruction, own: Optional[str], free: FrozenSet[str], imported: Container[str]
) -> Tuple[Optional[str], str]:
    operation = instruction.opname
    if operation in ("LOAD_GLOBAL", "LOAD_NAME"):
        return _GLOBAL, instruction.argval
    if operation != "LOAD_DEREF" and "LOAD_FAST" not in operation:
        return None, ""
    name = _names(instruction)[-1]
    if name in imported:
        return _IMPORTED, name
    if name == own:
        return _SELF, name
    return (_CELL, name) if operation == "LOAD_DEREF" and name in free else (None, "")
