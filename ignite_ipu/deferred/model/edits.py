"""Writes of the loop into weights and buffers around an update.

PyTorch has computed a loss when the loop writes into weights after it; the device computes it together with the update,
from the weights of that moment.
"""

from __future__ import annotations

from typing import Iterable

from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.operations import CLOCK, Operation
from ignite_ipu.deferred.graph.owners import CapturedLoop
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.weights.tracker import Weights


class WeightEdits:
    """Moments at which a captured model's weights were written last, as far as its recorded operations can tell."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._seen = weights.edits
        # The last operation that was recorded before the last edit.
        self._edited = 0

    def look(self) -> None:
        """Look for edits; what is recorded from now on is computed from the weights of now."""
        self._weights.notice_edits()
        if self._weights.edits != self._seen:
            self._seen, self._edited = self._weights.edits, CLOCK.now

    def note(self, number: int) -> None:
        """Count an edit that was made when operations had come up to a number."""
        self._edited = max(self._edited, number)

    def older_than(self, call: Operation) -> bool:
        """Tell whether the last edit was before a call."""
        self.look()
        return self._edited < call.number

    def ignore(self) -> None:
        """Take edits of now for none of the loop's."""
        self._weights.notice_edits()
        self._seen = self._weights.edits

    def check(self, operations: Iterable[Operation], loop: CapturedLoop, what: str = "The update") -> None:
        """Refuse an update, or a read, of what was computed from other weights than those of now."""
        self.look()
        for operation in operations:
            if operation.number > self._edited:
                continue
            weights = [leaf for leaf in operation.leaves if isinstance(leaf, Input) and leaf.parameter is not None]
            if weights or operation.model is not None:
                raise CaptureError(
                    f"{what} at {current_line()} is of what was computed at {operation.line}, and weights or buffers "
                    f"of {loop.name} were written after that. The device computes a loss and its update together, "
                    "from the weights of the update. Write into weights after optimizer.step(), or before the model "
                    "is called. An optimizer of two steps, as sharpness-aware minimisation (SAM) has, runs with "
                    "IPUConfig(update='host'), in which backward() brings the gradients back."
                )
