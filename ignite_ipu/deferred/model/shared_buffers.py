"""Buffers that several models of a loop have: calls of one read what those of another have written."""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, Dict, Iterable, Mapping, Optional, Sequence, Set

import torch

from ignite_ipu.deferred.graph.operations import Operation
from ignite_ipu.deferred.graph.state import read_buffers, written_ids
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.user_code import current_line

_MOST_WRITERS = 256


class SharedBuffers:
    """The buffers that several models of a loop have, and the calls that have written them.

    A call that does not write a buffer is not replayed with those that do. It cannot be computed after a later one of
    another model has written it, except together with it.

    Args:
        waiting: The calls by number that no update has made yet.
        replays: Those of them that were replayed.

    Attributes:
        has_writers: Whether any call was recorded that writes buffers.
        are_written: Whether calls may have written some of these buffers, or may do so.
    """

    def __init__(self, waiting: Mapping[int, Operation], replays: Mapping[int, Any]) -> None:
        self._waiting, self._replays = waiting, replays
        self.has_writers = self.are_written = False
        self._seen: Set[int] = set()
        self._shared: Set[int] = set()
        # By `id`, the last calls that have written a buffer. All of an update's would have to be among them for an
        # older one to count.
        self._writers: Dict[int, Deque[int]] = {}

    def note_writer(self) -> None:
        """Note that a call was recorded that writes buffers."""
        self.has_writers, self.are_written = True, bool(self._shared)

    def add(self, buffers: Iterable[torch.Tensor]) -> None:
        """Note the buffers of one more model."""
        ids = set(map(id, buffers))
        self._shared |= self._seen & ids
        self._seen |= ids
        self.are_written = self.has_writers and bool(self._shared)

    def merge(self, other: SharedBuffers) -> None:
        """Take over the writes of a loop that is joined with this one."""
        if other.has_writers:
            self.note_writer()
        for key, numbers in other._writers.items():
            self._writers.setdefault(key, deque(maxlen=_MOST_WRITERS)).extend(numbers)

    def note(self, operations: Iterable[Operation]) -> None:
        """Note calls that have written their buffers."""
        for call in operations if self._shared else ():
            for key in self._shared & written_ids(call):
                numbers = self._writers.setdefault(key, deque(maxlen=_MOST_WRITERS))
                if call.number not in numbers:
                    numbers.append(call.number)

    def stale(self, operations: Sequence[Operation], on_host: bool = False) -> Optional[Operation]:
        """Return the first of operations that reads a buffer which a later call has written that is not among them.

        If they are computed `on_host`, replayed calls are such ones, too: an update begins with the buffers before.
        """
        replayed = [self._waiting[number] for number in self._replays] if on_host and self._shared else []
        if not (self._writers or replayed):
            return None
        made = {each.number for each in operations}
        later = [(each.number, written_ids(each)) for each in replayed]
        for call in operations:
            used = () if call.done else read_buffers(call) & self._shared
            for key in used:
                numbers = [*self._writers.get(key, ()), *[number for number, written in later if key in written]]
                if any(number > call.number and number not in made for number in numbers):
                    return call
        return None

    def check(self, operations: Sequence[Operation], on_host: bool = False) -> None:
        """Refuse to compute operations of which one is stale.

        Raises:
            CaptureError: One is.
        """
        call = self.stale(operations, on_host)
        if call is not None:
            raise CaptureError(
                f"The values that are computed at {current_line()} depend on the call at {call.line}, which reads "
                "buffers that a later call of another model has written since. PyTorch has computed it before. Call "
                "the models in the order of their updates, or put them into one nn.Module whose forward does both."
            )
