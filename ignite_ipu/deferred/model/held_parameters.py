"""`HeldParameters`: the parameters of an optimizer that makes a loop's updates, found anew where they are others."""

from __future__ import annotations

import operator
from typing import Any, Callable, FrozenSet, List, Sequence

import torch

from ignite_ipu.deferred.graph.owners import held_by, held_tensors
from ignite_ipu.deferred.model.gradients import GradientBook

list_of_group: Callable[[Any], List[torch.Tensor]] = operator.itemgetter("params")
"""Returns the list of parameters of a group of an optimizer."""


class HeldParameters:
    """The parameters that an optimizer holds, looked for again where the lists of its groups have others.

    Args:
        book: The gradient book of the loop.

    Attributes:
        beside: Those that are of no model of the loop, at the last look.
    """

    def __init__(self, book: GradientBook) -> None:
        self._book = book
        self._holder = 0
        self._ids: FrozenSet[int] = frozenset()
        self._lists: List[List[torch.Tensor]] = []
        self.beside: Sequence[torch.Tensor] = ()

    def of(self, optimizer: torch.optim.Optimizer) -> FrozenSet[int]:
        """Return the ids of the parameters that an optimizer holds; the set of the book if these are all of its own."""
        lists = list(map(list_of_group, optimizer.param_groups))
        same = self._holder == id(optimizer) and list(map(len, lists)) == list(map(len, self._lists))
        if same and all([all(map(operator.is_, *pair)) for pair in zip(lists, self._lists)]):
            return self._ids
        held, every = held_by(optimizer), self._book.all
        self._holder, self._lists = id(optimizer), list(map(list, lists))
        self.beside = [each for each in held_tensors(optimizer) if id(each) not in every]
        self._ids = every if held >= every else held
        return self._ids
