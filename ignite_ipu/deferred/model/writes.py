"""Writes into weights and buffers around an update: those of the loop, and those that calls make with their update.

PyTorch has computed a loss when the loop writes into weights after it; the device computes it together with the update,
from the weights of that moment. And what a forward writes, such as the statistics of batch normalisation, PyTorch
writes in the call, and the device with the update that the call is part of.
"""

from __future__ import annotations

from typing import Dict, Iterable, Sequence, Set

from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.operations import CLOCK, Operation
from ignite_ipu.deferred.graph.owners import Captured
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.errors import CaptureError, listed
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

    def older_than(self, call: Operation) -> bool:
        """Tell whether the last edit was before a call."""
        self.look()
        return self._edited < call.number

    def ignore(self) -> None:
        """Take edits of now for none of the loop's."""
        self._weights.notice_edits()
        self._seen = self._weights.edits

    def check(self, operations: Iterable[Operation], model: Captured, what: str = "The update") -> None:
        """Refuse an update, or a read, of what was computed from other weights than those of now."""
        self.look()
        for operation in operations:
            if operation.number > self._edited:
                continue
            weights = [leaf for leaf in operation.leaves if isinstance(leaf, Input) and leaf.parameter is not None]
            if weights or operation.model is not None:
                raise CaptureError(
                    f"{what} at {current_line()} is of what was computed at {operation.line}, and weights or buffers "
                    f"of {model.name} were written after that. The device computes a loss and its update together, "
                    "from the weights of the update. Write into weights after optimizer.step(), or before the model "
                    "is called. An optimizer of two steps, as sharpness-aware minimisation (SAM) has, needs another "
                    'loop, with ipu_prepare: docs/accelerate.md, "Two steps for an update", has it.'
                )


class BufferWrites:
    """The calls of a captured model that would have written buffers by now, and wait by their numbers for their update.

    Those that no update will be of are made on the host, before anything is computed from what they write.
    """

    def __init__(self) -> None:
        self.waiting: Dict[int, Operation] = {}
        self._passed: Set[int] = set()  # those that have waited while another optimizer stepped

    def make_up_unused(self) -> None:
        """Make those calls on the host from which nobody can go backward any more."""
        self._make_up([call for call in self.waiting.values() if not _is_awaited(call)], ())

    def check_evaluation(self, model: Captured) -> None:
        self.make_up_unused()
        if self.waiting:
            first = self._first()
            raise CaptureError(
                f"{model.name} is evaluated at {current_line()}, but its call in training mode at {first}, as batch "
                "statistics are, and waits for optimizer.step(). PyTorch would evaluate with what it has written; the "
                "device writes it with the update. Evaluate after optimizer.step()."
            )

    def check_update(self, losses: Sequence[Loss], model: Captured, several: bool = False) -> None:
        """Refuse an update by some losses that leaves out calls from before.

        Of `several` optimizers a call may wait for the update of another, if nobody writes before it does.
        """
        operations = [operation for loss in losses for operation in loss.operations]
        for operation in operations:
            self.waiting.pop(operation.number, None)
        waits = {call for call in self.waiting.values() if several and _is_awaited(call)}
        self._make_up([call for call in self.waiting.values() if call not in waits], operations)
        self._passed = set(self.waiting)
        if any(call not in waits or not _may_wait(call, operations) for call in self.waiting.values()):
            first = self._first()
            self.waiting.clear()
            raise CaptureError(
                f"The call of {model.name} in training mode at {first}, as batch statistics are, but no loss of the "
                f"update at {current_line()} was computed from it, and it cannot be made up for on the host. "
                "For a forward pass without training, call model.eval() and use torch.no_grad(); leave out a batch "
                "before the model is called."
            )

    def _make_up(self, calls: Sequence[Operation], losses: Sequence[Operation]) -> None:
        """Make calls on the host, as far as what they are computed from is known, and none before has yet to write."""
        for call in calls:
            before = [*losses, *(each for each in self.waiting.values() if each not in calls)]
            late = any(each.number < call.number and _write_the_same(each, call) for each in before)
            if late or call.number in self._passed or call.model is None or not call.model.make_up_for(call):
                return
            del self.waiting[call.number]

    def _first(self) -> str:
        call = next(iter(self.waiting.values()))
        return f"{call.line} writes buffers ({listed(call.signature.writes)})"


def _is_awaited(call: Operation) -> bool:
    """Tell whether somebody has what a call returned, so that it may go backward."""
    return call.problem is None and bool(call.values)


def _write_the_same(one: Operation, other: Operation) -> bool:
    return one.model is other.model and bool({*one.signature.writes} & {*other.signature.writes})


def _may_wait(call: Operation, others: Sequence[Operation]) -> bool:
    """Tell whether a call can write its buffers after others, in PyTorch's order."""
    return not any(_write_the_same(call, other) and other.number > call.number for other in others)
