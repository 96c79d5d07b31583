"""`PopVisionProfiler`: a PopVision report of a few iterations instead of a whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Optional, Union

from ignite.engine import Engine, Events

from ignite_ipu.errors import SessionError
from ignite_ipu.session.hooks import IPUEvents
from ignite_ipu.session.resolved import Resolved
from ignite_ipu.session.session import IPUSession, session_of

__all__ = ["PopVisionProfiler"]


class PopVisionProfiler:
    """Writes a report of iterations `first` to `last` that the PopVision Graph Analyser opens.

    Poplar profiles a program for as long as it is loaded, and its report grows with every call. So the program is
    loaded with profiling when iteration `first` begins. It is loaded without profiling after `last`, or when the run
    ends or fails before. Each load costs a compilation, which an executable cache shortens. Weights, optimizer state
    and random state are the same afterwards::

        PopVisionProfiler("profile", first=100, last=102).attach(trainer)

    Args:
        folder: Where the report is written; made if it does not exist.
        first: First iteration of the trainer to profile, counted from 1.
        last: Last iteration to profile; `first` alone if None.

    Raises:
        ValueError: The iterations are no range.
    """

    def __init__(self, folder: Union[str, Path], first: int, last: Optional[int] = None) -> None:
        self.first = first
        self.last = first if last is None else last
        if not 1 <= self.first <= self.last:
            raise ValueError(f"Iterations {first} to {last} are no range: count from 1, the last not before the first.")
        self.folder = Path(folder)
        self._resolved: Optional[Resolved] = None

    def attach(self, trainer: Engine) -> None:
        """Profile this trainer.

        Raises:
            SessionError: It is no trainer of this library.
        """
        session = session_of(trainer)
        if session is None or session.training is None:
            raise SessionError(
                "PopVisionProfiler needs a trainer that create_ipu_trainer has returned. In a PopTorch loop of your "
                "own call options.enableProfiling(folder) and make few calls."
            )
        trainer.add_event_handler(Events.ITERATION_STARTED(once=self.first), self._begin, session)
        trainer.add_event_handler(Events.COMPLETED | IPUEvents.RUN_FAILED, self._end, session)

    def _begin(self, engine: Engine, session: IPUSession) -> None:
        program = session.trainers.required().program
        self.folder.mkdir(parents=True, exist_ok=True)
        self._resolved = program.resolved
        profiled = program.resolved.changed(lambda options: options.enableProfiling(str(self.folder)))
        session.trainers.replace_program(program.step, profiled)
        # Registered now, so that it comes after all other handlers, which may read the program.
        last = Events.ITERATION_COMPLETED(once=self.last)
        if engine.has_event_handler(self._end, last):
            engine.remove_event_handler(self._end, last)
        engine.add_event_handler(last, self._end, session)

    def _end(self, engine: Engine, session: IPUSession) -> None:
        if self._resolved is None or session.training is None:
            return
        resolved, self._resolved = self._resolved, None
        session.trainers.replace_program(session.training.step, resolved)
