"""The order in which calls read and write buffers: which may write theirs after others, and which come between."""

from __future__ import annotations

from typing import Container, Iterable, Optional, Sequence, Tuple

import torch

from ignite_ipu.deferred.graph.operations import Operation
from ignite_ipu.deferred.graph.state import read_buffers, touched_buffers, written_ids
from ignite_ipu.deferred.model.call_replays import chain_of
from ignite_ipu.deferred.model.edits import WeightEdits
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.user_code import Line, current_line


def is_read_before(
    number: int, line: Optional[Line], buffer: torch.Tensor, reads: Sequence[Tuple[Operation, Container[int]]]
) -> bool:
    """Return whether the calls of an update read a buffer as it was before another call, or an evaluation, wrote it.

    `reads` has each with the ids of the buffers that it reads.

    Args:
        number: That of the call or evaluation.
        line: That of the call; None for an evaluation.
        buffer: What it has written.

    Raises:
        CaptureError: Some of them read it before, and some after.
    """
    reading = [call for call, buffers in reads if id(buffer) in buffers]
    if not reading or reading[0].number > number:
        return False
    if reading[-1].number > number:
        what = "an evaluation" if line is None else f"the call at {line}"
        raise _written_between(reading[0], reading[-1], what)
    return True


def _written_between(first: Operation, last: Operation, writer: str) -> CaptureError:
    """Return the error of an update whose first and last calls have a writer of buffers between them."""
    return CaptureError(
        f"The update at {current_line()} is of calls at {first.line} and at {last.line}, and between them {writer} has "
        "written buffers. A device makes the calls of an update one after another. Call and evaluate models for other "
        "purposes before or after them."
    )


def refuse_edits_between(replayed: Sequence[Operation], later: Sequence[Operation], edits: WeightEdits) -> None:
    """Refuse an update of replayed calls if the loop has written a buffer of theirs before later calls write it."""
    for first in replayed:
        for last in later:
            if edits.came_between(first, last, written_ids(first) & written_ids(last)):
                raise _written_between(first, last, "the loop")


def comes_between(call: Operation, others: Sequence[Operation]) -> bool:
    """Return whether a call has to be made between others.

    Before it, some write the buffers that it writes, or those that it or its arguments are computed from; or some after
    it write its buffers, and some before read them.
    """
    before, written = [each for each in others if each.number < call.number], written_ids(call)
    used = written.union(*map(read_buffers, chain_of(call)))
    if any(not used.isdisjoint(written_ids(each)) for each in before):
        return True
    reads = any(not written.isdisjoint(read_buffers(each)) for each in before)
    return reads and any(not written.isdisjoint(written_ids(each)) for each in others)


def are_written_around(number: int, buffers: Iterable[int], calls: Sequence[Operation]) -> bool:
    """Return whether calls use buffers, by `id`, before an evaluation that writes them, and write them after it.

    The evaluation has a `number` among those of operations.
    """
    written = frozenset(buffers)
    used = any(not written.isdisjoint(read_buffers(each) | written_ids(each)) for each in calls if each.number < number)
    return used and any(not written.isdisjoint(written_ids(each)) for each in calls if each.number > number)


def may_wait(call: Operation, others: Sequence[Operation]) -> bool:
    """Return whether a call can be made after others.

    No later one reads or writes the buffers that it writes, nor writes those that it or its arguments are computed
    from.
    """
    later = [other for other in others if other.number > call.number]
    written = written_ids(call)
    if not all(written.isdisjoint(touched_buffers(other)) for other in later):
        return False
    writers = [written_ids(other) for other in later if other.signature.writes]
    read = frozenset().union(*map(read_buffers, chain_of(call))) if writers else frozenset()
    return all(map(read.isdisjoint, writers))
