"""Values that a model's code reads from Python: a compiled program has those of when it was traced.

A number that a loop anneals, a dropout rate, a mask that is replaced: a changed value is another program, be it an
attribute of the model or a global. A `forward` that changes them itself would run once, while it is traced, and
natively in every step.
"""

from __future__ import annotations

import operator
from itertools import chain
from typing import Any, Callable, Dict, Hashable, List, Sequence

from torch import nn
from torch.nn.modules import module as _of_all_modules
from torch.utils.hooks import RemovableHandle

from ignite_ipu.program.guards.names import HOOKS, Named
from ignite_ipu.program.guards.values import FIXED, FUNCTIONS, READ, Reader
from ignite_ipu.program.module_state import REGISTRATIONS

__all__ = ["PythonState"]

_STAYING = (*FIXED, *FUNCTIONS)
_VALUES = (*READ, *FUNCTIONS, nn.Module)
_GLOBAL_HOOKS: List[Dict[Any, Any]] = [getattr(_of_all_modules, f"_global{kind}") for kind in HOOKS]
# The attributes of a module are faster to read than the module.
_is_training: Callable[[Dict[str, Any]], bool] = operator.itemgetter("training")
_read = Reader().read


class PythonState:
    """The attributes of a model's modules, and the variables that its code names, which a trace reads as constants.

    Args:
        *others: Functions and objects that are called beside it, such as a loss.

    Attributes:
        names: What messages call the values.
        parts: The modules within the model and the others, and their hooks.
        words: All names that the code reads.
        iterators: The iterators and random generators among what it gets at.
    """

    def __init__(self, model: nn.Module, *others: Any) -> None:
        called = list(model.named_modules())
        for other in others:
            called += other.named_modules() if isinstance(other, nn.Module) else [("", other)]
        named = Named([*called, *[("self", hook) for hooks in _GLOBAL_HOOKS for hook in hooks.values()]])
        self.words, self.iterators = named.names, named.iterators
        self._modules = [vars(part) for _, part in called if isinstance(part, nn.Module)]
        self._sizes = list(map(len, self._modules))
        hooks = [*_GLOBAL_HOOKS, *[own[kind] for own in self._modules for kind in HOOKS]]
        tables = [*[own["_modules"] for own in self._modules], *hooks]
        self._empty, self._filled = ([table for table in tables if bool(table) is full] for full in (False, True))
        self.parts = self._held()
        # What differs when PyTorch has given handles of hooks to somebody, or modules others.
        self._told = RemovableHandle.next_id, REGISTRATIONS.count
        self._modes: List[bool] = []
        # Objects that lead to values are no values: with another in its place, these are elsewhere.
        values = [isinstance(read(), _VALUES) for _, read in named.places]
        self._leads = [read for (_, read), is_value in zip(named.places, values) if not is_value]
        self._leading = [read() for read in self._leads]
        places = [place for place, is_value in zip(named.places, values) if is_value]
        self.names = [name for name, _ in places]
        self._reads = [read for _, read in places]
        self._found: List[Any] = []
        self._changeable: List[Any] = []
        self._contents: List[Hashable] = []
        self._values: List[Hashable] = []

    def _held(self) -> List[Any]:
        return list(chain.from_iterable(map(dict.values, self._filled)))

    @property
    def complete(self) -> bool:
        """True if parts are the same, no attribute has come or gone since, and values are found at the same places."""
        told = RemovableHandle.next_id, REGISTRATIONS.count
        if self._told != told:
            if any(self._empty):
                return False
            self._told = told
        return (
            list(map(len, self._modules)) == self._sizes
            and self._held() == self.parts
            and all(map(operator.is_, [read() for read in self._leads], self._leading))
        )

    def training(self) -> List[bool]:
        """Return whether each module is in training mode; the same list while nothing has changed."""
        modes = list(map(_is_training, self._modules))
        if modes != self._modes:
            self._modes = modes
        return self._modes

    def set_training(self, modes: Sequence[bool]) -> None:
        """Put each module in training mode or not, as `training` returned."""
        for attributes, mode in zip(self._modules, modes):
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
