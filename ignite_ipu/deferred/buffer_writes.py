"""Buffers that a model's forward writes into, such as the statistics of batch normalisation.

PyTorch writes them in the call; the device writes them with the update that the call is part of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Sequence, Tuple

from ignite_ipu.deferred.errors import CaptureError
from ignite_ipu.deferred.graph import Operation
from ignite_ipu.deferred.lines import Line, current_line
from ignite_ipu.deferred.recipes import Loss
from ignite_ipu.listing import listed

if TYPE_CHECKING:
    from ignite_ipu.deferred.model import CapturedModel

__all__ = ["BufferWrites"]


class BufferWrites:
    """The calls of a captured model that would have written buffers by now, and wait for their update.

    Attributes:
        waiting: By the number of the call, its line and the names of the buffers.
    """

    def __init__(self) -> None:
        self.waiting: Dict[int, Tuple[Line, Sequence[str]]] = {}

    def note(self, operation: Operation) -> None:
        """Note a call that writes."""
        self.waiting[operation.number] = (operation.line, operation.plan.writes)

    def take_over(self, other: BufferWrites) -> None:
        """Take over the calls of a model that is a part of this one now."""
        self.waiting.update(other.waiting)

    def check_evaluation(self, model: CapturedModel) -> None:
        """Refuse an evaluation that would use buffers from before.

        Raises:
            CaptureError: A call waits.
        """
        if self.waiting:
            first = self._first()
            raise CaptureError(
                f"{model.name} is evaluated at {current_line()}, but its call in training mode at {first}, as batch "
                "statistics are, and waits for optimizer.step(). PyTorch would evaluate with what it has written; the "
                "device writes it with the update. Evaluate after optimizer.step()."
            )

    def check_update(self, losses: Sequence[Loss], model: CapturedModel) -> None:
        """Refuse an update that leaves out calls from before.

        Raises:
            CaptureError: A call that writes is not what the losses were computed from.
        """
        for loss in losses:
            for operation in loss.operations:
                self.waiting.pop(operation.number, None)
        if self.waiting:
            first = self._first()
            self.waiting.clear()
            raise CaptureError(
                f"The call of {model.name} in training mode at {first}, as batch statistics are, but no loss of the "
                f"update at {current_line()} was computed from it, and a device writes buffers with updates alone. "
                "For a forward pass without training, call model.eval() and use torch.no_grad(); leave out a batch "
                "before the model is called."
            )

    def _first(self) -> str:
        line, names = next(iter(self.waiting.values()))
        return f"{line} writes buffers ({listed(names)})"
