"""Values that a model's code reads from Python: a compiled program has those of when it was traced.

A number that a loop anneals, a dropout rate, a mask that is replaced: a changed value is another program, be it an
attribute of the model or a global. A `forward` that changes them itself would run once, while it is traced, and
natively in every step.
"""

from __future__ import annotations

import operator
from functools import partial
from itertools import chain
from types import FunctionType
from typing import Any, Callable, Collection, Dict, Hashable, List, Sequence

import torch
from torch import nn
from torch.nn.modules import module as _of_all_modules
from torch.utils.hooks import RemovableHandle

from ignite_ipu.program.guards.names import HOOKS, Named
from ignite_ipu.program.guards.values import FIXED, FUNCTIONS, READ, Reader
from ignite_ipu.program.module_state import REGISTRATIONS
from ignite_ipu.program.user_code import names_in

__all__ = ["PythonState"]

_STAYING = (*FIXED, *FUNCTIONS)
_VALUES = (*READ, *FUNCTIONS, nn.Module)
_GLOBAL_HOOKS: List[Dict[Any, Any]] = [getattr(_of_all_modules, f"_global{kind}") for kind in HOOKS]
# The attributes of a module are faster to read than the module.
_is_training: Callable[[Dict[str, Any]], bool] = operator.itemgetter("training")
_read = Reader().read
_MODE = "training"
# Of PyTorch's own modules so many are asked in one call for what tells nobody, and the next ones in the next.
_AT_ONCE = 128


class _Tables:
    """Dictionaries of modules that have to stay as they are: attributes by their number, others by what they hold."""

    def __init__(self, modules: Sequence[Dict[str, Any]], hooks: Sequence[Dict[Any, Any]] = ()) -> None:
        self._modules, self._sizes = modules, list(map(len, modules))
        tables = [*[own["_modules"] for own in modules], *hooks]
        self._empty, self._filled = ([table for table in tables if bool(table) is full] for full in (False, True))
        self.held: List[Any] = list(chain.from_iterable(map(dict.values, self._filled)))

    @property
    def same(self) -> bool:
        """True if no attribute has come or gone, and the same modules and hooks are there."""
        return (
            list(map(len, self._modules)) == self._sizes
            and not any(self._empty)
            and list(chain.from_iterable(map(dict.values, self._filled))) == self.held
        )


class PythonState:
    """The attributes of a model's modules, and the variables that its code names, which a trace reads as constants.

    Looks cost next to nothing for PyTorch's own modules without numbers that may change: PyTorch tells of hooks and of
    modules that are registered. Of what it does not tell of, such as a `forward` that is put into one of its layers, a
    larger model is asked in turns.

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
        called = list(model.named_modules())
        for other in others:
            called += other.named_modules() if isinstance(other, nn.Module) else [("", other)]
        named = Named([*called, *[("self", hook) for hooks in _GLOBAL_HOOKS for hook in hooks.values()]])
        self.words, self.iterators = named.names, named.iterators
        modules = [part for _, part in called if isinstance(part, nn.Module)]
        # Of a part that is captured meanwhile the class is another one, which says that it is of the one before.
        reads = {kind: _MODE in self.words or _reads_mode(kind) for kind in {part.__class__ for part in modules}}
        self._moded = [vars(part) for part in modules if part is model or reads[part.__class__]]
        theirs = [vars(part) for part in modules if _is_pytorchs(type(part))]
        hooks = [*_GLOBAL_HOOKS, *[vars(part)[kind] for part in modules for kind in HOOKS]]
        self._hookless = [table for table in hooks if not table]
        users = [vars(part) for part in modules if not _is_pytorchs(type(part))]
        self._watched = _Tables(users, [table for table in hooks if table])
        starts = range(0, len(theirs), _AT_ONCE)
        self._in_turns = [_Tables(theirs[start : start + _AT_ONCE]) for start in starts] or [self._watched]
        self._turn = 0
        # What differs when PyTorch has given handles of hooks to somebody, or modules others.
        self._told = RemovableHandle.next_id, REGISTRATIONS.count
        self._modes: List[bool] = []
        self.parts: List[Any] = [part for tables in (self._watched, *self._in_turns) for part in tables.held]
        # Objects that lead to values are no values: with another in its place, these are elsewhere.
        values = [isinstance(place.read(), _VALUES) for place in named.places]
        self._leads = [place.read for place, is_value in zip(named.places, values) if not is_value]
        self._leading = [read() for read in self._leads]
        # What forward leaves for others to look at, as an attention map, it does not compute from.
        assigned = self.words - named.read
        owners = [(path, vars(part)) for path, part in called if isinstance(part, nn.Module)]
        self._left = [(own, name, own[name]) for _, own in owners for name in assigned & own.keys()]
        left = {f"{path}.{name}".lstrip(".") for path, _ in owners for name in assigned}
        self._places = [
            place._replace(read=partial(_but_tensors, place.read)) if place.name in left else place
            for place, is_value in zip(named.places, values)
            if is_value
        ]
        self.leave_out(())

    def leave_out(self, names: Collection[str]) -> None:
        """Forget values, by their names in messages."""
        self._places = [place for place in self._places if place.name not in names]
        self.names = [place.name for place in self._places]
        self._reads = [place.read for place in self._places]
        self._found: List[Any] = []
        self._changeable: List[Any] = []
        self._contents: List[Hashable] = []
        self._values: List[Hashable] = []

    @property
    def within(self) -> str:
        """Time within which `complete` has become false, for messages; empty where that is seen in the next step."""
        turns = len(self._in_turns)
        return f", within the last {turns} steps" if turns > 1 else ""

    @property
    def complete(self) -> bool:
        """True if parts are the same, no attribute has come or gone since, and values are found at the same places."""
        if self._told != (RemovableHandle.next_id, REGISTRATIONS.count):
            if any(self._hookless) or not all(tables.same for tables in self._in_turns):
                return False
            self._told = RemovableHandle.next_id, REGISTRATIONS.count
        if self._leads and not all(map(operator.is_, [read() for read in self._leads], self._leading)):
            return False
        self._turn = (self._turn + 1) % len(self._in_turns)
        return self._watched.same and self._in_turns[self._turn].same

    def put_back_left(self) -> None:
        """Put attributes that forward only assigns to back to what they were when this was made."""
        for own, name, value in self._left:
            own[name] = value

    def training(self) -> List[bool]:
        """Return whether each module is in training mode that reads that, and the model; the same list for the same."""
        modes = list(map(_is_training, self._moded))
        if modes != self._modes:
            self._modes = modes
        return self._modes

    def set_training(self, modes: Sequence[bool]) -> None:
        """Put each module in training mode or not, as `training` returned."""
        for attributes, mode in zip(self._moded, modes):
            attributes["training"] = mode

    def values(self) -> List[Hashable]:
        """Return the values of this moment, comparable; the same list while nothing has changed."""
        found = [read() for read in self._reads]
        same = len(found) == len(self._found) and all(map(operator.is_, found, self._found))
        if not same:
            self._found = found
            self._changeable = [value for value in found if not isinstance(value, _STAYING)]
        # While they are the same objects, only those can have other values that are changed in place.
        contents = list(map(_read, self._changeable))
        if not same or contents != self._contents:
            self._contents, self._values = contents, list(map(_read, found))
        return self._values

    def changed(self, before: List[Hashable]) -> List[str]:
        """Return the names of the attributes that had other values before."""
        pairs = zip(self.names, before, self.values())
        return list(dict.fromkeys(name for name, old, new in pairs if old != new))


def _but_tensors(read: Callable[[], Any]) -> Any:
    value = read()
    return None if isinstance(value, torch.Tensor) else value


def _is_pytorchs(kind: type) -> bool:
    return kind.__module__.startswith("torch.nn.")


def _reads_mode(kind: type) -> bool:
    """Tell whether a module's code may compute otherwise in training than in evaluation mode."""
    own = kind.__mro__[: kind.__mro__.index(nn.Module)]
    functions = [member for base in own for member in vars(base).values() if isinstance(member, FunctionType)]
    return not _is_pytorchs(kind) or any(_MODE in names_in(function.__code__) for function in functions)
