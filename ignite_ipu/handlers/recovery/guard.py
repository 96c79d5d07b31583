"""`GuardedTraining`: device calls of one trainer, retried from snapshots when they fail."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
import weakref
from pathlib import Path
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence, TypeVar

from ignite.engine import Engine, Events

from ignite_ipu import backend
from ignite_ipu.errors import RecoveryError
from ignite_ipu.handlers.recovery.decisions import (
    EXIT,
    RESET,
    STOP,
    Decision,
    RecoveryStatus,
    ResetNeeded,
    decide,
    resume_command,
)
from ignite_ipu.handlers.recovery.images import RunImages
from ignite_ipu.handlers.recovery.replay import Replay, Snapshot
from ignite_ipu.session.events import IPUEvents
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.session import IPUSession
from ignite_ipu.session.training import Trained

__all__ = ["GuardedTraining", "RecoverySettings"]

_logger = logging.getLogger("ignite_ipu")
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class RecoverySettings:
    """Arguments of a `Recovery` handler; `sleep` waits for so many seconds."""

    folder: Path
    every: int
    seconds: Optional[float]
    batch_bytes: int
    retries: int
    backoff: float
    reset: Optional[Callable[[str], None]]
    command: Optional[str]
    sleep: Callable[[float], None]


@dataclasses.dataclass
class _Stream:
    """An inference program's random stream.

    Attributes:
        state: After the last call that succeeded; None before the program was compiled.
        drawn_from: Whether calls change it; None when that is not known yet.
    """

    state: Optional[List[int]]
    drawn_from: Optional[bool] = None


class GuardedTraining:
    """Makes the calls of one trainer and of the evaluators over its model, until its training ends.

    Args:
        others: Further objects of the run's state, by their name in the file.
    """

    def __init__(
        self,
        trainer: Engine,
        session: IPUSession,
        trained: Trained,
        others: Mapping[str, Any],
        settings: RecoverySettings,
        status: RecoveryStatus,
    ) -> None:
        self._interrupted: Optional[Callable[[], None]] = None
        self._trainer, self._session, self._trained = trainer, session, trained
        self._settings, self._status = settings, status
        self._replay = Replay(trained, session.weights)
        self._images = RunImages(session.model, session.weights, trained.link, {"trainer": trainer, **others})
        self._lets_pass = False
        self._streams: weakref.WeakKeyDictionary[ModelProgram, _Stream] = weakref.WeakKeyDictionary()

    # -- attaching ------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Guard the session's calls from now on."""
        self._session.hooks.guard = self
        self._trainer.state.recovery = self._status  # type: ignore[attr-defined]
        self._trainer.add_event_handler(Events.STARTED, self._begin)
        self._trainer.add_event_handler(Events.COMPLETED, self._drop_image)

    def end(self) -> None:
        """Note that the training has ended: its calls are guarded no more, and another trainer's may be."""
        for event, handler in ((Events.STARTED, self._begin), (Events.COMPLETED, self._drop_image), *self._last()):
            if self._trainer.has_event_handler(handler, event):
                self._trainer.remove_event_handler(handler, event)
        self._drop_image()
        self._streams.clear()
        self._replay.forget()

    def interrupt(self, leave: Optional[Callable[[], None]]) -> None:
        """Call `leave` as soon as the state of the run can be saved; None takes the wish back."""
        self._interrupted = leave

    def _begin(self, engine: Engine) -> None:
        engine.state.recovery = self._status  # type: ignore[attr-defined]
        self._drop_image()
        self._replay.forget()
        # Registered anew, so that they come after everybody else's: what they save is what those have left.
        for event, handler in self._last():
            if engine.has_event_handler(handler, event):
                engine.remove_event_handler(handler, event)
            engine.add_event_handler(event, handler)

    def _last(self) -> Any:
        return (Events.GET_BATCH_STARTED, self._before_batch), (Events.EPOCH_COMPLETED, self._between_iterations)

    def _drop_image(self) -> None:
        self._images.newest = None

    def _before_batch(self, engine: Engine) -> None:
        # The state between two epochs is the one after the first: handlers of the next one's start must not run twice.
        if engine.state.epoch_length is None or engine.state.iteration % engine.state.epoch_length:
            self._between_iterations()

    def _between_iterations(self) -> None:
        replay, image, settings = self._replay, self._images.newest, self._settings
        if replay.snapshot is None or (not replay.calls and image is not None):
            due = False
        else:
            due = (
                image is None
                or replay.calls >= settings.every
                or replay.held_bytes >= settings.batch_bytes
                or (settings.seconds is not None and replay.age >= settings.seconds)
            )
        if due or (self._interrupted is not None and replay.calls):
            self._images.take(self._trainer.state.iteration, self._take_snapshot())
        if self._interrupted is not None:
            self._interrupted()

    # -- device calls ---------------------------------------------------------------------------------------------

    def train(self, leaves: Sequence[Any], batch: Any) -> Any:
        """Make one training call, again and again if need be.

        Raises:
            RecoveryError: It cannot be made good; the state is saved.
            ResetNeeded: The IPUs need a reset that no hook does; the state is saved.
        """
        session, replay = self._session, self._replay
        program, link = self._trained.program, self._trained.link
        replay.about_to_make(leaves, batch)
        compiled = program.compiled is not None
        if not compiled:
            program.start_random_stream()
            replay.take()  # of what is on the host: there are no moments to be read before the program is loaded
        elif replay.snapshot is None or session.weights.training_is_stale or link.loaded or not program.ready:
            # Before what the host has set is sent: a fault while it is loses what the device alone has.
            self._take_snapshot()

        def call() -> Any:
            nonlocal compiled
            executor = session.prepare_call(leaves, batch)
            if not compiled:
                self._take_snapshot()
                compiled = True
            return executor(*leaves)

        output = self._retried(call, self._restore_training)
        replay.made(leaves)
        return output

    def evaluate(self, program: ModelProgram, call: Callable[[], Any]) -> Any:
        """Make one inference call, again and again if need be; raises as `train` does."""
        if self._interrupted is not None:
            self._interrupted()
        training_is_lost = False

        def call_and_follow() -> Any:
            if program not in self._streams:
                program.start_random_stream()
                self._streams[program] = _Stream(program.read_random_state())
            stream = self._streams[program]
            output = call()
            if stream.drawn_from is not False:
                after = program.read_random_state()
                if stream.drawn_from is None and stream.state is not None:
                    stream.drawn_from = after != stream.state
                stream.state = after
            return output

        def give_up(decision: Decision) -> None:
            nonlocal training_is_lost
            training_is_lost |= decision.action == RESET
            self._abandon(program)

        def repair() -> None:
            nonlocal training_is_lost
            if training_is_lost:
                self._restore_training()
                training_is_lost = False

        return self._retried(call_and_follow, repair, give_up)

    def copy(self, action: Callable[[], _T]) -> _T:
        """Make one copy from the device, again and again if need be."""
        if self._lets_pass:
            return action()

        def copied() -> _T:
            with self._let_pass():
                return action()

        result: _T = self._retried(copied, self._restore_training)
        return result

    @contextlib.contextmanager
    def _let_pass(self) -> Iterator[None]:
        """Let copies through: what makes them is itself retried."""
        before, self._lets_pass = self._lets_pass, True
        try:
            yield
        finally:
            self._lets_pass = before

    def _retried(
        self,
        action: Callable[[], Any],
        repair: Callable[[], None],
        decided: Callable[[Decision], None] = lambda decision: None,
    ) -> Any:
        """Return the result of an action, called again after every fault that can be retried.

        Args:
            repair: Called before it is called again; a fault in the repair is one more fault.
        """
        attempt = 0
        while True:
            try:
                if attempt:
                    repair()
                result = action()
                break
            except _faults() as error:
                attempt += 1
                decided(self._decide(error, attempt))
        if attempt:
            self._recovered()
        return result

    def forget(self) -> None:
        """Note that the host has set something that the device will take over."""
        self._replay.forget()

    def _restore_training(self) -> None:
        """Bring the training program back to where it was, if a snapshot has been taken."""
        if self._replay.snapshot is not None:
            with self._let_pass():
                self._status.replayed_calls += self._replay.run()

    def _abandon(self, program: ModelProgram) -> None:
        stream = self._streams.get(program)
        with self._let_pass():
            program.abandon(None if stream is None else stream.state)

    # -- decisions ------------------------------------------------------------------------------------------------

    def _decide(self, error: Exception, attempt: int) -> Decision:
        """Do what a fault asks for; returns when the call is to be made again, and else raises."""
        decision = decide(
            error,
            self._trainer.state.iteration,
            attempt,
            retries=self._settings.retries,
            backoff=self._settings.backoff,
            has_reset=self._settings.reset is not None,
        )
        self._status.note(decision)
        _logger.warning(
            "Device fault at iteration %d, attempt %d of %d (%s): %s. %s",
            decision.iteration,
            attempt,
            self._settings.retries,
            decision.recovery_action or "unrecoverable",
            decision.action,
            decision.error,  # the error itself would keep its frames alive in kept records
        )
        self._session.hooks.fire(IPUEvents.DEVICE_FAULT)
        if decision.action in (STOP, EXIT):
            self._end_run(decision, error)
        if decision.wait:
            self._settings.sleep(decision.wait)
        if decision.action == RESET and self._settings.reset is not None:
            self._reset_devices(decision, self._settings.reset)
        return decision

    def _reset_devices(self, decision: Decision, reset: Callable[[str], None]) -> None:
        for program in (*self._session.evaluations, self._trained.program):
            self._abandon(program)
        try:
            reset(decision.recovery_action or "")
        except Exception as failure:
            _logger.exception("The reset hook failed.")
            self._end_run(dataclasses.replace(decision, action=STOP), failure)

    def _end_run(self, decision: Decision, error: Exception) -> None:
        """Save the newest state, leave the model with it, and raise."""
        path = self.save()
        if self._replay.snapshot is not None:
            with self._let_pass():
                self._replay.put_back()
        image = self._images.newest
        if image is not None and path is not None:
            where = f"Its state after iteration {image.iteration} is in {path}."
        else:
            where = "Nothing has been trained since the run started or was resumed, so there was nothing to save."
        again = f"Go on with: {self._settings.command or resume_command()}"
        if decision.action == EXIT:
            _logger.error("The IPUs need a %s; the run ends. %s %s", decision.recovery_action, where, again)
            raise ResetNeeded from error
        raise RecoveryError(
            f"A device call of iteration {decision.iteration} failed {decision.attempt} time(s), the last time with: "
            f"{error}. {where} {again}"
        ) from error

    def _recovered(self) -> None:
        self._status.recoveries += 1
        _logger.info("Recovered; %d calls were repeated in this run so far.", self._status.replayed_calls)
        self._session.hooks.fire(IPUEvents.DEVICE_RECOVERED)

    # -- state ----------------------------------------------------------------------------------------------------

    def save(self) -> Optional[Path]:
        """Write the newest image of the run; returns the file, None when there is none."""
        path = self._images.write(self._settings.folder)
        if path is not None:
            self._status.saved = path
            self._session.hooks.fire(IPUEvents.STATE_SAVED)
        return path

    def _take_snapshot(self) -> Snapshot:
        started = time.perf_counter()
        self._trained.program.start_random_stream()
        snapshot = self._replay.take()
        self._status.snapshots += 1
        self._status.snapshot_seconds += time.perf_counter() - started
        self._session.hooks.fire(IPUEvents.SNAPSHOT_TAKEN)
        return snapshot


def _faults() -> Any:
    poptorch = backend.poptorch()
    return poptorch.RecoverableError, poptorch.UnrecoverableError
