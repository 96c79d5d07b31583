"""Python values that a call of a model's code has changed, and that code may decide by, such as a flag.

They may be anywhere: in attributes of modules and of other objects, in globals, in closures.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any, Hashable, List, Optional, Set

import torch
from torch import nn

from ignite_ipu.program.guards.names import Named
from ignite_ipu.program.guards.python_state import PythonState, is_remade, parts_of
from ignite_ipu.program.guards.values import is_grown, replaced_tensors
from ignite_ipu.program.tensors.trees import attributes_of
from ignite_ipu.torch_names.modules import BUFFERS, PARAMETERS

__all__ = ["Decisions"]


class Decisions:
    """The values that a model's code reaches by names at this moment, to be compared with those after a call.

    Args:
        model: The model.
        *others: Functions and objects that are called beside it, such as a loss.
        named: The values that their code reaches by names, if looked up.

    Attributes:
        named: The values that the code reaches by names.
        words: All names that it reads.
        state: The Python values that it reads.
    """

    def __init__(self, model: nn.Module, *others: Any, named: Optional[Named] = None) -> None:
        named = self.named = Named(parts_of(model, *others)) if named is None else named
        self._called, self.words = (model, *others), named.names
        # `ModuleAttributes` finds the new attributes of modules.
        self._objects = [each for each in named.objects if not isinstance(each, nn.Module)]
        self._globals = list({id(owner): owner for owner, _ in named.owners if type(owner) is dict}.values())
        self._classes, self._absent = named.classes, named.absent
        self.state = PythonState(model, *others, named=named)
        self._values, self._leading, self._present = self.state.values(), self.state.leading(), self._names()
        self._members, self._tensors = self._names_in_classes(), self._tensors_of_modules()

    def again(self) -> Decisions:
        """Return the values that are found now."""
        return Decisions(*self._called)

    @property
    def are_current(self) -> bool:
        """True if nothing has changed by which code is found: a search now would have the same `state`."""
        same = self.state.is_untouched and self.state.values() is self._values
        tensors = self._tensors_of_modules()
        same = same and len(tensors) == len(self._tensors) and all(map(operator.is_, tensors, self._tensors))
        same = same and self._present == self._names() and self._members == self._names_in_classes()
        return same and sys.modules.keys().isdisjoint(self._absent)

    def changed(self) -> List[str]:
        """Return the names of the values that are others now.

        A tensor in a place is a result or a cache, and does not count. Iterators do not, either: a `Retrace` refuses
        those from which each call takes.
        """
        found = sorted(set().union(*map(operator.xor, self._present, self._names())))
        leading = zip(self.state.lead_names, self._leading, self.state.leading())
        found += [name for name, old, new in leading if not (is_remade(old, new) or isinstance(new, torch.Tensor))]
        now = self.state.values()
        if now is not self._values:
            values = zip(self.state.names, self._values, now, self.state.values.objects)
            found += [name for name, old, new, value in values if old != new and _decides(old, new, value)]
        return list(dict.fromkeys(found))

    def _tensors_of_modules(self) -> List[Optional[torch.Tensor]]:
        tables = [own.get(kind, {}).values() for own in self.state.attributes for kind in (PARAMETERS, BUFFERS)]
        return list(chain.from_iterable(tables))

    def _names_in_classes(self) -> List[Set[str]]:
        return [self.words & vars(each).keys() for each in self._classes]

    def _names(self) -> List[Set[str]]:
        """Return the names that the code reads and that exist, of each object and of globals."""
        tables = [*map(attributes_of, self._objects), *self._globals]
        return [self.words & table.keys() for table in tables]


def _decides(before: Hashable, now: Hashable, value: Any) -> bool:
    """Return whether a value differs by more than tensors; both readings, and the value."""
    if isinstance(value, (torch.Tensor, Iterator)):
        return False
    return replaced_tensors(before, now) is None and not is_grown(before, now, lambda _: True)
