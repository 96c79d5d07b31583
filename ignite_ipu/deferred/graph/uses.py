"""Functions that were called with weights and buffers which are about to change: they keep the values from before."""

from __future__ import annotations

from typing import Any, Container, Iterable, List, Sequence

from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.operations import USES, Operation, is_statistic_of
from ignite_ipu.deferred.graph.owners import CapturedLoop
from ignite_ipu.errors import EarlyReadError
from ignite_ipu.program.user_code import current_line


def keep_weights(loops: Sequence[CapturedLoop]) -> None:
    """Keep the weights of loops, some about to change, that functions without known results were called with.

    Of a function whose weights were written since, the loop has the earlier values, or refuses a later use.
    """
    found = [(each, [leaf for leaf in _kept_by(each) if leaf.model.loop in loops]) for each in _uses()]
    for loop in {leaf.model.loop for _, leaves in found for leaf in leaves}:
        loop.reads.show_weights(())
    for operation, leaves in found:
        if not _settle_before(operation, leaves):
            continue
        thens = [leaf.model.loop.reads.weights_then(operation) for leaf in leaves]
        values = {id(weight): value for then in thens for weight, value in then or ()}
        for leaf in leaves if None not in thens else ():
            leaf.set_aside(values.get(id(leaf.tensor), leaf.tensor))


def keep_buffers_read(call: Operation, written: Container[int]) -> None:
    """Keep the values of buffers, given by their ids, that functions were called with and that a call will write."""
    for operation in [each for each in _uses() if each is not call]:
        leaves = [leaf for leaf in _kept_by(operation) if id(leaf.tensor) in written]
        if leaves and _settle_before(operation, leaves):
            for leaf in leaves:
                leaf.model.loop.reads.show_weights(())
                leaf.set_aside(leaf.tensor)


def _settle_before(operation: Operation, leaves: Iterable[Any]) -> bool:
    """Have buffers that a function reads what earlier calls write into them; returns whether the host can have that.

    If it cannot, the function has no values any more.
    """
    loops = {leaf.model.loop for leaf in leaves if leaf.is_buffer}
    if not loops:
        return True
    line = current_line()
    try:
        for loop in loops:
            loop.reads.settle_before(operation, line)
    except EarlyReadError:
        operation.problem = f"buffers that it was computed with, at {operation.line}, have changed at {line}"
        return False
    return True


def _uses() -> List[Operation]:
    """Return the functions that were called with weights, and whose results have not gone backward."""
    return [operation for operation in [use() for use in list(USES.values())] if operation is not None]


def _kept_by(operation: Operation) -> List[Any]:
    """Return the weights and buffers that a function reads; those that it writes are replayed with the model's."""
    inputs = [leaf for leaf in operation.leaves if type(leaf) is Input and leaf.model is not None]
    return [leaf for leaf in inputs if not is_statistic_of(leaf, operation)]
