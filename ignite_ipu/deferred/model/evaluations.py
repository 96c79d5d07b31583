"""Calls in evaluation mode that gradients may flow through, and that nothing has computed yet.

Their results come with an update, if they lead to a loss. An inference program computes them if they are read before
that, or if weights change: PyTorch has computed them at the call.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Container

from ignite_ipu.deferred.graph.operations import Operation, by_number
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.hooks import Edited
from ignite_ipu.session.weights.tracker import Weights


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
        for call in sorted(self.waiting, key=by_number):
            if call in but:
                continue
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
                    f"weights changed at {current_line()}, and the call could not be computed before: {error}"
                )

    def after_edits(self, edited: Edited) -> None:
        """Compute the calls with the weights from before writes that were found, where these were kept."""
        if all(before is not None for _, before in edited):
            with self._weights.with_others(edited) if edited else contextlib.nullcontext():
                self.before_weights_change()
            return
        for call in self.waiting:
            call.problem = f"weights or buffers were written before {current_line()}, and after the call at {call.line}"
        self.waiting.clear()
