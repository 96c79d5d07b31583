"""Writes into weights and buffers around an update: those of the loop, and those that calls make with their update.

PyTorch has computed a loss when the loop writes into weights after it; the device computes it together with the update,
from the weights of that moment. And what a forward writes, such as the statistics of batch normalisation, PyTorch
writes in the call, and the device with the update that the call is part of.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, Iterable, List, Sequence, Set

from torch import nn

from ignite_ipu.deferred.compiled.evaluation import CapturedEvaluation
from ignite_ipu.deferred.compiled.modes import Modes
from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.operations import CLOCK, Operation, Value, replayed, shown_input
from ignite_ipu.deferred.graph.owners import Captured
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.graph.structure import unflatten
from ignite_ipu.deferred.model.turns import is_statistic
from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.program.forward.left_behind import called_beside
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
                    "is called. An optimizer of two steps, as sharpness-aware minimisation (SAM) has, runs with "
                    "IPUConfig(update='host'), in which backward() brings the gradients back."
                )


class BufferWrites:
    """The calls of a captured model that would have written buffers by now, and wait by their numbers for their update.

    Those that no update will be of are made on the host, before anything is computed from what they write.
    """

    def __init__(self, modes: Modes, edits: WeightEdits, evaluation: CapturedEvaluation) -> None:
        self._modes, self._edits, self._evaluation = modes, edits, evaluation
        self.waiting: Dict[int, Operation] = {}
        self._passed: Set[int] = set()  # those that have waited while another optimizer stepped

    def make_up_unused(self) -> None:
        """Make those calls on the host from which nobody can go backward any more."""
        self._make_up([call for call in self.waiting.values() if not _is_awaited(call)], ())

    def waits_for_others(self, call: Operation) -> bool:
        """Tell whether calls before one have yet to write what it reads; batch statistics are not, in training mode."""
        before = [each for number, each in self.waiting.items() if number < call.number and each.model is call.model]
        names = {name for each in before for name in each.signature.writes}
        return not all(is_statistic(call, name) for name in names & {*call.signature.writes})

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
            if (
                late
                or call.number in self._passed
                or call.model is None
                or not self._is_made_up(call, call.model.model)
            ):
                return
            del self.waiting[call.number]

    def _is_made_up(self, call: Operation, model: nn.Module) -> bool:
        """Make a call on the host that is of no update, for what it writes; tells whether that was possible.

        It is where the weights, attributes and what it is given are those of its time, and it draws nothing.
        """
        now, then = self._modes.now(), call.signature.modes
        unknown = any(type(leaf) is Value and not leaf.known for leaf in call.leaves)
        if then is None or then._replace(training=now.training) != now or call.signature.draws or unknown:
            return False
        if not self._edits.older_than(call):
            return False

        def run(call: Operation, leaves: List[Any]) -> Any:
            args, kwargs = unflatten(call.signature.structure, leaves)
            run_on_host = functools.partial(self._evaluation.run_on_host, model, args, kwargs, call.line)
            return called_beside(call.signature.left, run_on_host)

        with self._modes.in_training_as(then):
            call.settle(replayed([call], shown_input, run)[call])
        self._edits.ignore()
        return True

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
