"""`HostReads`: values of a loop that are read before their update has run, and that the host computes."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Sequence

import torch

from ignite_ipu.deferred.graph.operations import Operation
from ignite_ipu.deferred.graph.state import Values
from ignite_ipu.errors import EarlyReadError, logger
from ignite_ipu.program.user_code import Line


class HostReads:
    """Decides whether the host can compute values of a loop, and brings the newest weights for that.

    Args:
        loop: The loop, a `Loop`.
    """

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._has_warned = False

    def computes_on_host(self, line: Line) -> bool:
        """Copy the newest weights to the host, if it has not got them, to compute a value there that is read at a line.

        False if the host is not to have them: the device has made an update ahead of its `optimizer.step()`.
        """
        if self._loop.updates.is_ahead:
            return False
        if self._loop.session.weights.to_host() and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "The value read at %s belongs to a weight update that is not complete, so the host computes it, "
                "here and in the steps to come: each time a forward pass on the CPU, with a copy of the weights "
                "after each update. Keep loss.detach() and read it after optimizer.step() to save both.",
                line,
            )
        return True

    def computes_alone(self, call: Operation) -> bool:
        """Return whether the host can compute a call before those that were made before it have run.

        It replays those of them that write buffers which the call reads.
        """
        loop = self._loop
        if loop.updates.is_ahead or loop.updates.weights.then(call) is None:
            return False
        return bool(loop.buffers.begin_on_host(call))

    def settle_before(self, operation: Operation, line: Line) -> None:
        """Replay the pending calls that write buffers which a function reads at a line.

        Raises:
            EarlyReadError: One cannot be replayed.
        """
        if not self._loop.buffers.begin_on_host(operation):
            raise EarlyReadError(
                f"A value computed at {operation.line} is read at {line}, and calls that the host cannot replay have "
                "yet to write buffers that it was computed with. Read it after optimizer.step()."
            )

    def known(self, operations: Sequence[Operation]) -> Mapping[Operation, List[torch.Tensor]]:
        """Return the results of those operations that were replayed: the host has later buffers by now."""
        replays = self._loop.buffers.replays
        return {each: replays[each.number].results for each in operations if each.number in replays}

    def check_weights(self) -> None:
        """Record writes into weights; refuse to compute with them if the device is ahead of the loop."""
        self._loop.session.hooks.check_shown()
        self._loop.edits.look()

    def before_write(self, tensors: Sequence[torch.Tensor], is_counted: bool) -> None:
        """Bring the newest values of weights or buffers, which are about to be written after a read of values.

        PyTorch counts the write, or not, as through `parameter.data`.
        """
        loop = self._loop
        self.check_weights()  # the read may have run the update
        if is_counted:
            loop.note_write(tensors)
            loop.edits.before_write(tensors)
        else:
            loop.session.weights.to_host()
            loop.session.weights.detector.keep(tensors)

    def check_unwritten(self, operations: Sequence[Operation]) -> None:
        """Refuse to read a value of operations that were recorded before weights were written."""
        loop = self._loop
        loop.edits.look()
        loop.edits.check(operations, loop, "The read", unless_kept=loop.updates.on_host)
        loop.buffers.shared.check(operations, on_host=True)

    def weights_then(self, operation: Operation) -> Optional[Values]:
        """Return the weights that have changed since an operation used them, as they were; None if some are lost."""
        loop = self._loop
        loop.edits.look()
        if loop.edits.is_written(operation, unless_kept=loop.updates.on_host):
            return None
        then: Optional[Values] = loop.updates.weights.then(operation)
        return then

    def was_written_uncounted(self, tensor: torch.Tensor, operation: Operation) -> bool:
        """Return whether a weight was written after an operation in a way that PyTorch does not count."""
        return bool(self._loop.edits.was_written_uncounted(tensor, operation))

    def show_weights(self, operations: Sequence[Operation]) -> None:
        """Copy the newest weights to the host, and refuse operations that were recorded before others were written."""
        self.check_unwritten(operations)
        self._loop.session.weights.to_host()
