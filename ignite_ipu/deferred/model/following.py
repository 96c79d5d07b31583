"""Uses of captured models that a session reports to their loop."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional, Sequence

import torch

from ignite_ipu.deferred.model.buffers import BufferBook
from ignite_ipu.deferred.model.early_update import EarlyUpdate
from ignite_ipu.deferred.model.edits import WeightEdits
from ignite_ipu.deferred.model.evaluations import EvaluationBook
from ignite_ipu.deferred.model.waiting import settle_sharing
from ignite_ipu.deferred.tensor.on_weights import record_on_weights
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.session.hooks import Edited, Gradients, SessionFollower


@dataclasses.dataclass
class Withheld:
    """The update that was made before its `optimizer.step()`, whose weights are not shown until that comes."""

    update: Optional[EarlyUpdate] = None


class LoopFollower(SessionFollower):
    """Follows the uses of a loop's models.

    Args:
        name: The name of the models.
        records: Whether functions of weights are recorded.
    """

    def __init__(
        self,
        name: str,
        buffers: BufferBook,
        evaluations: EvaluationBook,
        edits: WeightEdits,
        gradients: Optional[Gradients],
        withheld: Withheld,
        records: bool,
        after_view: Callable[[torch.Tensor], None],
    ) -> None:
        self._name, self._buffers, self._evaluations, self._edits = name, buffers, evaluations, edits
        self._gradients, self._withheld = gradients, withheld
        self.records, self._after_view = records, after_view

    @property
    def gradients(self) -> Optional[Gradients]:
        return self._gradients

    def record(self, func: Any, args: Any, kwargs: Any) -> Any:
        return record_on_weights(func, args, kwargs) if self.records else NotImplemented

    def check_shown(self) -> None:
        if self._withheld.update is not None:
            self._withheld.update()

    def give_back(self) -> bool:
        update, self._withheld.update = self._withheld.update, None
        return update is not None

    def check_evaluation(self) -> None:
        self.check_shown()  # calls of an update that is taken back have to be settled
        settle_sharing(self._buffers)
        self._buffers.before_evaluation(self._name)

    def before_buffer_read(self) -> None:
        self._buffers.before_read()

    def before_buffers_written(self, buffers: Sequence[torch.Tensor]) -> None:
        self._buffers.before_written(buffers)

    def after_view(self, tensor: torch.Tensor) -> None:
        if not EAGER.is_on:
            self._after_view(tensor)

    def after_edits(self, edited: Edited) -> None:
        self._buffers.after_edits(edited)
        if self._evaluations.waiting:
            self._evaluations.after_edits(edited)
        self._edits.found(edited)

    def refuse_frozen(self, reason: str) -> None:
        raise CaptureError(reason)

    report_kept = refuse_frozen
