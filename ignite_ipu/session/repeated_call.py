"""`RepeatedCall`: the call of the training program once more, without a look at what cannot have changed."""

from __future__ import annotations

from typing import Optional

from torch.utils.hooks import RemovableHandle

from ignite_ipu.program.guards.retrace import MOST_CALLS
from ignite_ipu.session.compiled_program import CompiledProgram
from ignite_ipu.session.program_kinds import GradientKind
from ignite_ipu.session.programs import Programs


class RepeatedCall:
    """The next call of the program that trains, as long as nothing has changed that the last one depended on.

    `TrainingCalls.prepare` goes through many objects to bring a program to its IPUs. After a call its facts are known,
    and one function compares them. Arguments are like those of the last call in shape and type.

    Attributes:
        executor: The executor to call.
    """

    def __init__(self, programs: Programs, state: CompiledProgram, handles: int) -> None:
        trained = programs.trainers.required()
        self.executor = state.executor
        self._trainers, self._trained, self._link = programs.trainers, trained, trained.link
        self._program, self._state, self._shared = trained.program, state, programs.shared
        self._weights, self._copies = programs.weights, programs.weights.programs
        self._copy, self._handles = self._copies.training, handles

    @classmethod
    def of(cls, programs: Programs, handles: int) -> Optional[RepeatedCall]:
        """Return the call after one that was prepared and followed; None if it takes more than a few looks.

        `handles` is how many handles of hooks PyTorch had given out when there were none on gradients.
        """
        trained = programs.trainers.current
        state = None if trained is None else trained.program.state
        if trained is None or not isinstance(state, CompiledProgram) or isinstance(trained.program.kind, GradientKind):
            return None
        return None if state.buffers or programs.shared.others else cls(programs, state, handles)

    def is_ready(self) -> bool:
        """Return whether `executor` may be called as it is: it is on its IPUs, with the newest weights and numbers."""
        state, copy = self._state, self._copy
        return (
            self._trainers.current is self._trained
            and self._trained.program is self._program
            and self._program.state is state
            and RemovableHandle.next_id == self._handles
            and not self._shared.others
            and not state.is_due
            and state.calls < MOST_CALLS
            and copy is not None
            and self._copies.training is copy
            and not copy.stale
            and self._link.is_current
            and self.executor.isAttachedToDevice()
        )

    def note(self) -> None:
        """Note that the executor has made an update, as `TrainingCalls.note_updates` does."""
        self._weights.trained()
        self._link.stepped(1)
        self._state.calls += 1
