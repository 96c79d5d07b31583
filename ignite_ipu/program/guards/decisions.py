"""Python values that a call of a model's code has changed, and that code may decide by, such as a flag.

They may be anywhere: in attributes of modules and of other objects, in globals, in closures.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, Hashable, List, Optional, Set

import torch
from torch import nn

from ignite_ipu.program.guards.names import Named
from ignite_ipu.program.guards.python_state import PythonState, is_remade, parts_of
from ignite_ipu.program.guards.values import is_grown, replaced_tensors
from ignite_ipu.program.tensors.trees import attributes_of

__all__ = ["Decisions"]


class Decisions:
    """The values that a model's code reaches by names at this moment, to be compared with those after a call.

    Args:
        model: The model.
        *others: Functions and objects that are called beside it, such as a loss.
        named: The values that their code reaches by names, if looked up.

    Attributes:
        words: All names that the code reads.
    """

    def __init__(self, model: nn.Module, *others: Any, named: Optional[Named] = None) -> None:
        named = Named(parts_of(model, *others)) if named is None else named
        self.words = named.names
        # `ModuleAttributes` finds the new attributes of modules.
        self._objects = [each for each in named.objects if not isinstance(each, nn.Module)]
        self._globals = list({id(owner): owner for owner, _ in named.owners if type(owner) is dict}.values())
        self._state = PythonState(model, *others, named=named)
        self._values, self._leading, self._present = self._state.values(), self._state.leading(), self._names()

    def changed(self) -> List[str]:
        """Return the names of the values that are others now.

        A tensor in a place is a result or a cache, and does not count. Iterators do not, either: a `Retrace` refuses
        those from which each call takes.
        """
        found = sorted(set().union(*map(operator.xor, self._present, self._names())))
        leading = zip(self._state.lead_names, self._leading, self._state.leading())
        found += [name for name, old, new in leading if not (is_remade(old, new) or isinstance(new, torch.Tensor))]
        now = self._state.values()
        if now is not self._values:
            values = zip(self._state.names, self._values, now, self._state.values.objects)
            found += [name for name, old, new, value in values if old != new and _decides(old, new, value)]
        return list(dict.fromkeys(found))

    def _names(self) -> List[Set[str]]:
        """Return the names that the code reads and that exist, of each object and of globals."""
        tables = [*map(attributes_of, self._objects), *self._globals]
        return [self.words & table.keys() for table in tables]


def _decides(before: Hashable, now: Hashable, value: Any) -> bool:
    """Return whether a value differs by more than tensors; both readings, and the value."""
    if isinstance(value, (torch.Tensor, Iterator)):
        return False
    return replaced_tensors(before, now) is None and not is_grown(before, now, lambda _: True)
