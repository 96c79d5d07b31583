"""Updates that ran before their `optimizer.step()`, because somebody read a value that comes with them.

Until that step comes, PyTorch would have the weights of before; the device has those of after.
"""

from __future__ import annotations

from typing import Callable, Optional, Sequence

from ignite_ipu.deferred.graph.operations import Value
from ignite_ipu.deferred.graph.owners import Captured
from ignite_ipu.deferred.graph.step_graph import CALLS, Loss, ancestors
from ignite_ipu.deferred.tensor.frames import DISTRIBUTIONS, called_by
from ignite_ipu.errors import CaptureError, EarlyReadError
from ignite_ipu.program.user_code import Line, current_line

__all__ = ["EarlyUpdate", "check_early_read"]


class EarlyUpdate:
    """An update that ran early; to call it refuses to show what the update has changed.

    Args:
        line: Where the value was read.
    """

    __slots__ = ("line",)

    def __init__(self, line: Line) -> None:
        self.line = line

    def error(self, rest: str) -> CaptureError:
        """Return the error for what does not go with the update; `rest` says what it is and what to do."""
        return CaptureError(f"The value read at {self.line} made the update run before optimizer.step(), and {rest}")

    def __call__(self) -> None:
        """Refuse to show weights or the optimizer's state.

        Raises:
            CaptureError: Always.
        """
        raise self.error(
            f"now weights or optimizer state are used at {current_line()}, to read, save or evaluate them. PyTorch "
            "would have those of before the update. Call optimizer.step() first, or read the value after "
            "optimizer.step()."
        )


def check_early_read(
    model: Captured, postponed: Callable[[], Optional[str]], value: Value, what: str, line: Line
) -> None:
    """Refuse to run an update for a value that somebody reads, unless it is complete but for `optimizer.step()`.

    Args:
        model: What would run the update.
        postponed: Returns why it cannot run yet, None if it can.
        value: What is read.
        what: How it is read, in words.
        line: Where.

    Raises:
        EarlyReadError: The value's loss has not gone backward, or others will before the update.
    """
    own = {operation for operation in ancestors(value) if operation.model and operation.model.whole is model}
    if not own <= {operation for loss in model.pending for operation in loss.operations}:
        remedy = (
            "It is a check of torch.distributions: leave it out with validate_args=False."
            if called_by(DISTRIBUTIONS)
            else "Move the line after backward (or optimizer.step()); to keep a sum, add loss.detach() and read "
            "the sum later. For a forward pass without training, call model.eval() or use torch.no_grad()."
        )
        raise EarlyReadError(
            f"{what} at {line} asks for a value of the training step before the step has run: its loss has "
            f"not gone backward. {remedy}"
        )
    reason = postponed() or _left_by_its_step(model.pending)
    if reason is not None:
        raise EarlyReadError(
            f"{what} at {line} asks for a value that comes with the weight update, and {reason}. Keep "
            "loss.detach() and read it after the update."
        )


def _left_by_its_step(losses: Sequence[Loss]) -> Optional[str]:
    """Return why an update is not complete whose last loss an engine's step function has left; None for others."""
    if not losses or losses[-1].call in (None, CALLS.current):
        return None
    return (
        f"the step function that called backward() at {losses[-1].line} has returned without optimizer.step(), so that "
        "gradients accumulate (handlers read in iterations that make an update, as by "
        "Events.ITERATION_COMPLETED(every=...))"
    )
