"""`ProgramSource`: the parts that a program is made from, and the options that it is wrapped with."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence

from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.step import BatchStep
from ignite_ipu.session.hooks import SessionHooks
from ignite_ipu.session.program_kinds import ProgramKind
from ignite_ipu.session.resolved import Resolved
from ignite_ipu.session.side_effects import SideEffects
from ignite_ipu.session.weights.tracker import Weights

if TYPE_CHECKING:
    from ignite_ipu.session.placement import Placing

OnTrace = Callable[[str, bool], None]
"""Called with the reason why a program does not compute as its traced model, which changes Python values in every call,
and whether these only keep tensors of the call; may refuse the model."""


@dataclasses.dataclass(frozen=True, eq=False)
class ProgramSource:
    """The parts that a program is made from.

    Attributes:
        step: The module that is compiled.
        resolved: The options, and their arithmetic.
        kind: How PopTorch wraps the module.
        weights: Who holds the newest weights.
        hooks: The observers of the session.
        effects: The side effects of calls on the host.
        placing: The placement on several IPUs; None for a model on one IPU, or with its own annotations.
        on_trace: Called after a trace, and may refuse the program; None for a caller that looks at the program.
        step_class: The class of the step before PopTorch wraps it.
    """

    step: BatchStep
    resolved: Resolved
    kind: ProgramKind
    weights: Weights
    hooks: SessionHooks
    effects: SideEffects
    placing: Optional[Placing]
    on_trace: Optional[OnTrace]
    step_class: type

    def wrapped_options(self, leaves: Sequence[Any], own_statistics: bool) -> Options:
        """Return the options to wrap the module with, for the first batch.

        Args:
            leaves: Arguments of the call that will be made.
            own_statistics: Whether replicas keep normalisation statistics of their own.
        """
        changes: List[Callable[[Options], Any]] = []
        if self.placing is not None:
            try:
                # The host measures the layers by a call, whose writes into buffers some versions of PyTorch count.
                with self.weights.put_back_unnoticed():
                    self.placing.prepare(self.step, leaves)
            except BaseException:
                self.step.layout.forget()
                raise
            changes.append(self.placing.configure)
        gradients = self.kind.gradients
        if gradients is not None:
            gradients.settle(self.step, self.resolved, leaves)
            changes.append(gradients.request)
        if own_statistics:
            changes.append(lambda options: options.broadcastBuffers(False))
        if not changes:
            return self.resolved.options

        def change(options: Options) -> None:
            for each in changes:
                each(options)

        return self.resolved.copied(change)
