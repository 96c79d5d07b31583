"""Updates that ran before their `optimizer.step()`, because a value that comes with them was read.

Until that step, PyTorch would have the previous weights; the device has the updated ones.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, List, Optional, Sequence

from ignite_ipu.deferred.graph.operations import Operation, finish_all
from ignite_ipu.deferred.model.history import Made, TakenBack
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.user_code import Line, current_line


def _stay(reason: str) -> None:
    """Stay with fused updates."""


@dataclasses.dataclass(eq=False)
class EarlyUpdate:
    """An update that ran early, for the value read at a line.

    Calling it refuses access to the changed weights and state.

    Attributes:
        restore: Restores the book of buffers from before the update.
        back: The previous state, if the update can be undone.
        stepped: Time of the previous update, by `CLOCK`.
        made: The losses of the update as they were, if they are kept.
        awaited: Whether it ran even before `backward()`, which is still to come.
        live: Operations of losses that have yet to go backward, or that went backward and retained their graph: PyTorch
            has it until then, or until the step.
        edits: How often the weights were found to be written by then.
    """

    line: Line
    restore: Callable[[], None]
    awaited: bool = False
    back: Optional[TakenBack] = None
    stepped: int = 0
    leave: Callable[[str], None] = _stay
    made: Sequence[Made] = ()
    live: List[Operation] = dataclasses.field(default_factory=list)
    edits: int = 0

    def check_confirmed(self) -> None:
        """Refuse to go on without the `backward()` that the update ran ahead of."""
        if self.awaited:
            raise CaptureError(
                f"The value read at {self.line} made the update run before backward(), since in the previous step "
                f"its loss went backward next. Now, at {current_line()}, that has not happened: the weights on the "
                "device have an update that PyTorch would not have made. Read values after backward(), or load the "
                "last checkpoint and leave a loop that skips updates to the host."
            )

    def confirm(self, uncleared: Optional[Line], retained: bool = False) -> None:
        """Take that the loss goes backward for which the update has run already; its graph may be `retained`.

        `uncleared` is where the update before was made, if its gradients have not been cleared.
        """
        if uncleared is not None:
            raise self.error(
                f"it uses the gradients of the update made at {uncleared} again, because nothing has cleared them "
                "since. Call optimizer.zero_grad() after every optimizer.step()."
            )
        self.awaited = False
        if not retained:
            finish_all(self.live)
        self.live = []

    def finish(self) -> None:
        """Take that the step comes, after which no loss goes backward through graphs from before it."""
        finish_all(self.live)

    def check_unwritten(self, edits: int) -> None:
        """Refuse to go on if the weights were written since, by how often that was found."""
        if edits != self.edits:
            raise self.error(
                "weights were written before that step, through memory of theirs that was handed out before the read "
                "(parameter.data, a view, an array). PyTorch writes into the previous weights. Read the value before "
                "that memory is taken, or after optimizer.step()."
            )

    @property
    def can_be_taken_back(self) -> bool:
        """True for one of the first updates of a loop that may go on with updates on the host."""
        return self.back is not None

    def between(self, line: Line) -> str:
        """Return the sentence for an update of another optimizer, made at a line before the step of this one."""
        return f"The value read at {self.line} made an update run before its step(), and another's is made at {line}."

    def error(self, rest: str) -> CaptureError:
        """Return the error for an action that does not fit the update; `rest` names it and the way out."""
        return CaptureError(f"The value read at {self.line} made the update run before optimizer.step(), and {rest}")

    def __call__(self) -> None:
        """Refuse to show weights or the optimizer's state, unless the update can be taken back."""
        if self.back is not None:
            self.leave("Weights or optimizer state are used between a read of the loss and optimizer.step().")
            return
        raise self.error(
            f"now weights or optimizer state are used at {current_line()}, to read, save or evaluate them. PyTorch "
            "would have the previous ones. Call optimizer.step() first, or read the value after "
            "optimizer.step()."
        )
