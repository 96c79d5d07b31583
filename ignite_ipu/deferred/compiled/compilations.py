"""Compilations of a loop's training programs, of which the loop's author is warned."""

from __future__ import annotations

from typing import Set

from ignite_ipu.deferred.compiled.update import CompiledUpdate
from ignite_ipu.deferred.graph.step_graph import describe_change
from ignite_ipu.errors import logger

_MOST_CHANGES = 3


class Compilations:
    """Counts the programs that were compiled, and warns of changes in the body of the loop.

    Attributes:
        count: How many there were.
    """

    def __init__(self) -> None:
        self.count = 0
        self._reported: Set[str] = set()

    def warn(self, before: CompiledUpdate, wanted: CompiledUpdate) -> None:
        """Warn of the next compilation, of another program than before."""
        if before.graph.key != wanted.graph.key:
            what = describe_change(before.graph, wanted.graph)
        elif before.count != wanted.count:
            what = f"{wanted.count} micro-batches make an update, it was {before.count}"
        elif before.modes != wanted.modes:
            what = before.modes.difference(wanted.modes)
        elif before.gradients != wanted.gradients:
            what = "its gradients are read"
        elif before.variable != wanted.variable:
            changed = [before.numbers[position] for position in sorted(wanted.variable - before.variable)]
            what = f"numbers in it change ({changed}); from now on they are inputs"
        else:
            what = "other values of it are read"
        if what not in self._reported:
            logger.warning(
                "The body of the training loop changed, so it is compiled again: %s. Later ones like it are not "
                "reported.",
                what,
            )
            self._reported.add(what)
        if self.count == _MOST_CHANGES:
            logger.warning(
                "This was recompilation number %d. On IPUs each takes minutes: keep the loop's body and the shapes of "
                "its batches the same (drop_last=True leaves out an incomplete last batch).",
                self.count,
            )
