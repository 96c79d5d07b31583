"""The norm that gradients of fused updates are clipped to, which is compiled into their programs."""

from __future__ import annotations

from typing import Any, FrozenSet, Optional

from ignite_ipu.capabilities.optimizers import ON_THE_HOST
from ignite_ipu.deferred.compiled.training import TrainingPrograms
from ignite_ipu.errors import CaptureError, logger
from ignite_ipu.program.user_code import Line, current_line


class Clipping:
    """Clipping of the gradients of one optimizer's updates.

    Args:
        norm: The norm that the settings name.
        programs: The programs that it is compiled into.

    Attributes:
        norm: The norm that updates are clipped to, None for none.
        asked: Whether the pending update, or one that was made early, is clipped so far.
        is_by_call: Whether the loop has clipped the pending update, or the last one.
        checked: The parameters that were known to be all trained ones when gradients were clipped last.
        line: Where the loop clips.
        clipped: The ids of the parameters whose gradients were clipped last.
    """

    def __init__(self, norm: Optional[float], programs: TrainingPrograms) -> None:
        self.norm, self._programs = norm, programs
        self.asked = self.is_by_call = False
        self.checked: Any = None
        self.line: Optional[Line] = None
        self.clipped: FrozenSet[int] = frozenset()

    def clip(self, max_norm: float, norm_type: float, read_at: Optional[Line], ids: FrozenSet[int]) -> None:
        """Clip the gradients of the pending update, or of one that was made for a value that was `read_at` a line.

        `ids` are those of the update's parameters.
        """
        if norm_type != 2:
            raise CaptureError(
                f"Clipping at {current_line()} by the {norm_type}-norm: an IPU clips by the 2-norm only."
            )
        if self.asked and ids != self.clipped:
            modes = self._programs.modes
            trained = {id(each) for each, is_trained in zip(modes.parameters, modes.trained()) if is_trained}
            if not trained.isdisjoint(ids ^ self.clipped):
                raise CaptureError(
                    f"Gradients are clipped at {current_line()} that were clipped at {self.line} together with those "
                    "of other parameters: the optimizer holds others by now, and a device clips all gradients of an "
                    f"update together, once. Clip once, after the last add_param_group(). {ON_THE_HOST}"
                )
        before = self.so_far
        self._change(max_norm if before is None else min(before, max_norm), read_at)
        self.is_by_call = self.asked = True
        self.line, self.clipped = current_line(), ids

    @property
    def so_far(self) -> Optional[float]:
        """Clipping norm of the pending update, or None."""
        return self.norm if self.asked else None

    def finish(self, read_at: Optional[Line]) -> None:
        """Clip no gradients of an update without a request; the update may have been made early."""
        if self.is_by_call and not self.asked:
            self._change(None, read_at)
        self.asked = False

    def _change(self, max_norm: Optional[float], read_at: Optional[Line]) -> None:
        if max_norm == self.norm:
            return
        before, now = ("not clipped" if norm is None else f"clipped to {norm}" for norm in (self.norm, max_norm))
        if read_at is not None:
            raise CaptureError(
                f"The gradients of an update are to be {now} at {current_line()}, but the value read at {read_at} made "
                f"it run before. Its gradients were {before}, as those of the previous update. Read values after "
                "optimizer.step() if clipping changes."
            )
        if self._programs.prepared:
            logger.warning(
                "Gradients are %s from %s on, and were %s: the step is compiled again. On IPUs each compilation takes "
                "minutes: clip in every update, to the same norm.",
                now,
                current_line(),
                before,
            )
            self._programs.forget_program()
        self.norm = max_norm

    def restart(self) -> None:
        """Let another optimizer's updates be clipped only if the loop does so again."""
        if self.is_by_call and not self.asked:
            self.norm, self.is_by_call = None, False
