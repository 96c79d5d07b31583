"""`RepeatedCall`: the call of the training program once more, without a look at what cannot have changed."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import torch
from torch.utils.hooks import RemovableHandle

from ignite_ipu.program.guards.retrace import MOST_CALLS
from ignite_ipu.session.compiled_program import CompiledProgram
from ignite_ipu.session.program_kinds import GradientKind
from ignite_ipu.session.programs import Programs


class RepeatedCall:
    """The next call of the program that trains, as long as nothing has changed that the last one depended on.

    `TrainingCalls.prepare` goes through many objects to bring a program to its IPUs. After a call its facts are known,
    and one function compares them. Arguments are like those of the last call in shape and type.
    """

    def __init__(self, programs: Programs, state: CompiledProgram, handles: int) -> None:
        trained = programs.trainers.required()
        self._executor = state.executor
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

    def run(self, leaves: Sequence[torch.Tensor]) -> Any:
        """Make an update by the executor as it is, and note it as `TrainingCalls.note_updates` does.

        Returns the results; None, before anything has run, if it is not on its IPUs with the newest weights and
        numbers.
        """
        state, copy = self._state, self._copy
        if (
            self._trainers.current is not self._trained
            or self._trained.program is not self._program
            or self._program.state is not state
            or RemovableHandle.next_id != self._handles
            or self._shared.others
            or state.is_due
            or state.calls >= MOST_CALLS
            or copy is None
            or self._copies.training is not copy
            or copy.stale
            or not self._link.is_current
            or not self._executor.isAttachedToDevice()
        ):
            return None
        results = self._executor(*leaves)
        self._weights.trained()
        self._link.stepped(1)
        state.calls += 1
        return results
