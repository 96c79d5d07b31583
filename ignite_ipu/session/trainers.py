"""`Trainers`: the ways in which one model is trained, each by programs of its own; one trains at a time."""

from __future__ import annotations

from typing import Callable, Iterator, List, Optional

from ignite_ipu.errors import SessionError
from ignite_ipu.program.step import BatchStep
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.resolved import Resolved
from ignite_ipu.session.training import Trained


class Trainers:
    """Trainers of one model: the current one, and those of other optimizers, which keep their programs on their IPUs.

    Args:
        include: Called with the module of each program that trains.

    Attributes:
        current: The one whose turn it is, None without a trainer.
        waiting: The others.
    """

    def __init__(self, include: Callable[[BatchStep], None]) -> None:
        self._include = include
        self.current: Optional[Trained] = None
        self.waiting: List[Trained] = []

    def __iter__(self) -> Iterator[Trained]:
        if self.current is not None:
            yield self.current
        yield from self.waiting

    def required(self) -> Trained:
        """Return the current trainer.

        Raises:
            SessionError: There is none.
        """
        if self.current is None:
            raise SessionError("This model has no trainer: call create_ipu_trainer first.")
        return self.current

    def refuse_second(self) -> None:
        """Refuse to make another trainer.

        Raises:
            SessionError: The model has one.
        """
        if self.current is not None:
            raise SessionError(
                "This model has a trainer already, and one model can be trained by one program at a time. Use that "
                "trainer, or call trainer.ipu.close() before making another."
            )

    def start(self, trained: Trained) -> None:
        """Let a new trainer train the model."""
        self.current = trained
        self._include(trained.program.step)

    def take_turn(self, trained: Optional[Trained]) -> None:
        """Give the turn to another trainer, or with None to the one that is started next.

        Each is of an optimizer of its own and keeps its programs on their IPUs; the weights go from one to the next.
        """
        current = self.current
        if current is trained:
            return
        if current is not None:
            current.program.set_aside(keep_ipus=True)
            self.waiting.append(current)
        if trained is not None:
            self.waiting.remove(trained)
            trained.program.go_on()
        self.current = trained

    def replace_program(self, step: BatchStep, resolved: Resolved, keep: bool = False) -> ModelProgram:
        """Train by another program from now on, and return it; see `Trained.replace`.

        Raises:
            SessionError: The model has no trainer.
            OptimizerError: Parameters were unfrozen that the optimizer does not hold.
        """
        trained = self.required()
        trained.replace(step, resolved, keep)
        self._include(step)
        return trained.program

    def end(self) -> None:
        """Have no current trainer any more, whose programs were destroyed."""
        self.current = None

    def clear(self) -> None:
        """Forget all trainers, after their programs were destroyed."""
        self.current = None
        self.waiting.clear()
