"""`Preemption`: a scheduler's SIGTERM ends the run with its state saved, within the grace period."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, Dict, Optional, Sequence

from ignite.engine import Engine, Events

from ignite_ipu.errors import logger
from ignite_ipu.handlers.recovery.decisions import EXIT_PREEMPTED, Preempted, resume_command
from ignite_ipu.handlers.recovery.handler import Recovery
from ignite_ipu.session.hooks import IPUEvents

__all__ = ["Preemption"]


class Preemption:
    """Saves and exits with code 75 when the process is asked to end.

    The trainer finishes its iteration, saves, and exits; `resume="auto"` of `Recovery` goes on with the next one. In an
    evaluation, the newest snapshot is saved instead. Should neither come within the grace period, a timer saves the
    newest snapshot and ends the process: the run then repeats the later iterations.

    Args:
        recovery: Saves the state; attached to the same trainer.
        grace: Seconds between the signal and the kill that follows it. A tenth of them is kept in reserve.
        signals: Which signals ask for the end.
    """

    def __init__(
        self, recovery: Recovery, *, grace: float = 30.0, signals: Sequence[signal.Signals] = (signal.SIGTERM,)
    ) -> None:
        if grace <= 0:
            raise ValueError(f"grace={grace}: the grace period must be longer than nothing.")
        self._recovery = recovery
        self._grace = grace
        self._signals = tuple(signals)
        self._before: Dict[signal.Signals, Any] = {}
        self._timer: Optional[threading.Timer] = None

    def attach(self, trainer: Engine) -> None:
        """Listen for the signals while this trainer runs, which must be in the main thread."""
        trainer.add_event_handler(Events.STARTED, self._begin)
        trainer.add_event_handler(Events.COMPLETED | IPUEvents.RUN_FAILED, self._end)

    def _begin(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "Preemption needs the trainer to run in the main thread: Python gives no other the signals."
            )
        self._end()
        for number in self._signals:
            self._before[number] = signal.signal(number, self._on_signal)

    def _end(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._recovery.interrupt(None)

    def _on_signal(self, number: int, frame: Any) -> None:
        logger.warning(
            "%s: the run will be saved and ended within %g s.", signal.Signals(number).name, self._grace * 0.9
        )
        if self._timer is None:
            self._timer = threading.Timer(self._grace * 0.9, self._expired)
            self._timer.daemon = True
            self._timer.start()
        self._recovery.interrupt(self._leave)

    def _leave(self) -> None:
        self._save()
        raise Preempted

    def _expired(self) -> None:
        logger.warning("The iteration did not end within the grace period.")
        try:
            self._save()
        except Exception:
            logger.exception("The state could not be saved.")
        os._exit(EXIT_PREEMPTED)

    def _save(self) -> None:
        path = self._recovery.save()
        logger.warning("Saved: %s. Go on with: %s", path or "nothing, as nothing was trained", resume_command())
