"""Calls in evaluation mode that gradients may flow through, and that nothing has computed yet.

Their results come with an update, if they lead to a loss. An inference program computes them if they are read before
that, or if weights or buffers change: PyTorch has computed them at the call.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Container, Sequence

from torch import nn

from ignite_ipu.deferred.graph.operations import Operation, by_number
from ignite_ipu.deferred.graph.state import read_buffers, written_ids
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.hooks import Edited
from ignite_ipu.session.weights.tracker import Weights
from ignite_ipu.torch_names.modules import NormWithStatistics


class EvaluationBook:
    """The calls of a loop's models in evaluation mode whose results may be unknown, `waiting`."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.waiting: weakref.WeakSet[Operation] = weakref.WeakSet()

    def record(self, call: Operation) -> None:
        """Note a call; it is computed at once if no such call has gone backward so far."""
        assert call.model is not None
        if not call.signature.went_backward and all(leaf.known for leaf in call.value_leaves):
            call.model.evaluate(call)
        else:
            self.waiting.add(call)

    def merge(self, other: EvaluationBook) -> None:
        """Take over the calls of models that are trained together with these from now on."""
        self.waiting.update(other.waiting)
        other.waiting.clear()

    def before_weights_change(self, but: Container[Operation] = ()) -> None:
        """Compute the calls whose results are still referenced, `but` those that an update computes."""
        self._compute([each for each in self.waiting if each not in but])

    def _compute(self, calls: Sequence[Operation]) -> None:
        for call in sorted(calls, key=by_number):
            self.waiting.discard(call)
            if call.done or call.problem is not None or not call.values:
                continue
            assert call.model is not None
            known = all(leaf.known for leaf in call.value_leaves)
            try:
                if not known:
                    raise CaptureError("it is computed from a value of an update that has not run")
                call.model.evaluate(call)
            except CaptureError as error:
                call.problem = (
                    f"weights or buffers changed at {current_line()}, and the call could not be computed before: "
                    f"{error}"
                )

    def before_writes(self, writers: Sequence[Operation], but: Container[Operation] = ()) -> None:
        """Compute the calls that read buffers which later calls write, `but` those that an update computes with these.

        The buffers are about to be written.
        """
        written = [(each.number, written_ids(each)) for each in writers if each.signature.writes]

        def reads(call: Operation) -> bool:
            used = read_buffers(call) if written else ()
            return any(number > call.number and not ids.isdisjoint(used) for number, ids in written)

        self._compute([each for each in self.waiting if each not in but and reads(each)])

    def before_evaluation(self, model: nn.Module) -> None:
        """Compute the calls that read buffers which the evaluation of a model may write."""
        own = {id(buffer) for module in model.modules() if _may_write(module) for buffer in module.buffers(False)}
        self._compute([each for each in self.waiting if not own.isdisjoint(read_buffers(each))])

    def after_edits(self, edited: Edited) -> None:
        """Compute the calls with the weights from before writes that were found, where these were kept."""
        if all(before is not None for _, before in edited):
            with self._weights.with_others(edited) if edited else contextlib.nullcontext():
                self.before_weights_change()
            return
        for call in self.waiting:
            call.problem = f"weights or buffers were written before {current_line()}, and after the call at {call.line}"
        self.waiting.clear()


def _may_write(module: nn.Module) -> bool:
    """Return whether a call may write buffers of a module, as normalisations do in training mode alone."""
    return module.training or not isinstance(module, NormWithStatistics)
