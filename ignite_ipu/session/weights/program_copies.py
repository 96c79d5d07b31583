"""`ProgramCopies`: the weights that a model's programs have on their devices, and which of these are stale."""

from __future__ import annotations

import dataclasses
from typing import List, Optional, Sequence

from ignite_ipu.poptorch_types import Executor
from ignite_ipu.session.hooks import IPUEvents, SessionHooks


@dataclasses.dataclass
class ProgramCopy:
    """One program's weights.

    Attributes:
        executor: The program's executor.
        stale: Whether newer weights exist elsewhere, which go to the program before its next call.
    """

    executor: Executor
    stale: bool = False


class ProgramCopies:
    """The copies of a model's weights that its programs have, each uploaded only when it is stale.

    PopTorch refreshes an inference executor by itself only when it wraps the same module object as the training one and
    was made after it, and then copies twice the first time. Our executors wrap different modules on purpose, so that
    every copy is one of ours.

    Attributes:
        training: The copy of the program that trains; None without one.
        inference: The copies of the programs that evaluate.
    """

    def __init__(self, hooks: SessionHooks) -> None:
        self._hooks = hooks
        self.training: Optional[ProgramCopy] = None
        self.inference: List[ProgramCopy] = []

    @property
    def training_is_stale(self) -> bool:
        """True if the host has weights that the training program has not."""
        return self.training is not None and self.training.stale

    def add(self, executor: Executor, training: bool, stale: bool) -> None:
        """Add the copy of a program, in place of one that its executor had."""
        copy = ProgramCopy(executor, stale)
        if training:
            self.training = copy
        else:
            self.inference = [*(each for each in self.inference if each.executor is not executor), copy]

    def remove(self, executor: Executor) -> bool:
        """Remove the copy of a program; returns whether it was the one that trains."""
        self.inference = [copy for copy in self.inference if copy.executor is not executor]
        trained = self.training is not None and self.training.executor is executor
        if trained:
            self.training = None
        return trained

    def mark_stale(self, but: Optional[Executor] = None) -> None:
        """Note that all programs lack the newest weights, `but` one."""
        for copy in self._all():
            copy.stale |= copy.executor is not but

    def loaded(self, executor: Executor) -> None:
        """Note that a program was loaded, which uploaded the host's weights."""
        for copy in self._all():
            if copy.executor is executor:
                copy.stale = False

    def is_stale(self, executor: Executor) -> bool:
        """Return whether the host has weights that an inference program has not."""
        return any(copy.stale for copy in self.inference if copy.executor is executor)

    def spoil(self, executor: Executor) -> None:
        """Have the weights of an inference program uploaded before its next call."""
        for copy in self.inference:
            copy.stale |= copy.executor is executor

    def upload(self, copy: ProgramCopy) -> bool:
        """Copy the host's weights to a program; returns whether that took a copy."""
        if not copy.executor.isAttachedToDevice():
            return False  # loading the program uploads them
        copy.stale = False
        copy.executor.copyWeightsToDevice()
        self._hooks.fire(IPUEvents.WEIGHTS_TO_DEVICE)
        return True

    def _all(self) -> Sequence[ProgramCopy]:
        return self.inference if self.training is None else (*self.inference, self.training)
