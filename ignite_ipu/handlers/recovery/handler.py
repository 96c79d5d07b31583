"""`Recovery`: training survives device faults, or ends with its state saved."""

from __future__ import annotations

import dataclasses
import os
import time
import weakref
from pathlib import Path
from typing import Any, Callable, List, Mapping, Optional, Sequence, TypeVar, Union

from ignite.engine import Engine, Events

from ignite_ipu import backend
from ignite_ipu.checkpoints.atomic_files import remove_unfinished
from ignite_ipu.checkpoints.resuming import resume_from
from ignite_ipu.errors import RecoveryError, logger
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
from ignite_ipu.session.hooks import IPUEvents
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.random_streams import read_stream, started_stream
from ignite_ipu.session.session import IPUSession, session_of
from ignite_ipu.session.training import Trained

__all__ = ["Recovery"]

_T = TypeVar("_T")


class Recovery:
    """Repeats calls after device faults as PopTorch requests, or ends the run with its state saved.

    When a device call fails with IPU_RESET, the IPUs are attached again with the newest snapshot. The calls since then
    are repeated, and the failed one is made again. Weights, optimizer, random numbers, metrics and logs are those of a
    run without the fault. Evaluations are covered, too. Other resets are the `reset` hook's business. Without a hook
    the state is saved and the process exits with code 76 and prints the command that goes on. After an unrecoverable
    fault, or more than `retries` of one call, the state is saved and `RecoveryError` raised.

    If the options have no `randomSeed`, random streams start at torch's initial seed: PopTorch does not report another
    start, so it could not be restored.

    A snapshot costs one download of weights and optimizer state between two iterations, and the host's memory for them.
    Batches since the snapshot are kept for the repetition.

    Args:
        folder: Where the state of an ended run is written, as `recovery_<iteration>.pt`.
        to_save: Further objects of the run's state, as for Ignite's `Checkpoint`, such as schedulers. Trainer,
            model and optimizer are included as "trainer", "model" and "optimizer".
        every: Device calls between snapshots.
        seconds: Seconds after which a snapshot is taken even before that; None for no limit.
        batch_bytes: Memory of kept batches that calls for a snapshot even before that.
        retries: Attempts to make one call good.
        backoff: Seconds before the first retry, doubled for each further one, up to a minute.
        reset: Called with PopTorch's recovery action ("PARTITION_RESET", for example) while no IPUs are held; resets
            them, and raises if it cannot.
        resume: "auto" to go on with the newest complete checkpoint in `folder` (this handler's, or one that a
            `Checkpoint` with the same `to_save` wrote), "never", or a path. Done by `attach`.
        command: The command that goes on with the run, for the message; this process's own by default.

    Attributes:
        status: The counts and decisions so far; also the trainer's `state.recovery`.
    """

    def __init__(
        self,
        folder: Union[str, os.PathLike[str]],
        to_save: Optional[Mapping[str, Any]] = None,
        *,
        every: int = 50,
        seconds: Optional[float] = None,
        batch_bytes: int = 1 << 30,
        retries: int = 3,
        backoff: float = 1.0,
        reset: Optional[Callable[[str], None]] = None,
        resume: str = "never",
        command: Optional[str] = None,
    ) -> None:
        if every < 1:
            raise ValueError(f"every={every}: snapshots are taken every so many device calls, so at least 1 is needed.")
        if retries < 0 or backoff < 0:
            raise ValueError(f"retries={retries} and backoff={backoff} cannot be negative.")
        self.folder = Path(folder).expanduser()
        self.status = RecoveryStatus()
        self.every, self.seconds, self.batch_bytes = every, seconds, batch_bytes
        self.retries, self.backoff, self.reset, self.command = retries, backoff, reset, command
        self._to_save = dict(to_save or {})
        self._resume = resume
        self._sleep: Callable[[float], None] = time.sleep
        # Weakly: the session has it until the training ends.
        self._guarded: Callable[[], Optional[_GuardedTraining]] = lambda: None
        self._interrupted: Optional[Callable[[], None]] = None

    def attach(self, trainer: Engine) -> Optional[Path]:
        """Guard this trainer's calls and those of all evaluators over its model, until its training ends.

        Returns:
            The checkpoint that the run goes on from, if `resume` found one.

        Raises:
            ValueError: The model has such a handler already, or `to_save` renames the trainer, model or optimizer.
            CheckpointError: `resume` found a checkpoint that cannot be loaded. Nothing is guarded then.
        """
        session = session_of(trainer)
        if session is None or session.trained is None:
            raise ValueError("Recovery guards training: attach it to an engine that create_ipu_trainer returned.")
        if session.hooks.guard is not None:
            raise ValueError("This trainer's device calls are guarded already: attach one Recovery handler.")
        own = {"trainer": trainer, "model": session.model, "optimizer": session.trained.link.conversion.source}
        for name, value in self._to_save.items():
            if own.get(name, value) is not value:
                raise ValueError(f"to_save[{name!r}] is not this trainer's {name}, which has that name in the file.")
        remove_unfinished(self.folder)
        # Checks come first: a trainer whose attaching fails is not guarded.
        resumed = resume_from(self.folder, {**own, **self._to_save}, self._resume)
        others = {name: value for name, value in self._to_save.items() if name not in own}
        guarded = _GuardedTraining(trainer, session, session.trained, others, self)
        self._guarded = weakref.ref(guarded)
        return resumed

    def interrupt(self, leave: Optional[Callable[[], None]]) -> None:
        """Call `leave` as soon as the state of the run can be saved: between iterations, or within an evaluation.

        Args:
            leave: Saves and raises; None to take the wish back.
        """
        self._interrupted = leave

    def save(self) -> Optional[Path]:
        """Write the newest state that a run can go on from; returns the file, None when there is nothing to save.

        Nothing is asked of the device, and any thread may call it.

        Raises:
            CheckpointError: It cannot be written.
        """
        guarded = self._guarded()
        return None if guarded is None else guarded.save()


@dataclasses.dataclass
class _Stream:
    """The random stream of an inference program after its last call, if it is compiled, and whether calls change it."""

    state: Optional[List[int]]
    drawn_from: Optional[bool] = None


class _GuardedTraining:
    """Makes the calls of one trainer and of the evaluators over its model, until its training ends."""

    def __init__(
        self, trainer: Engine, session: IPUSession, trained: Trained, others: Mapping[str, Any], recovery: Recovery
    ) -> None:
        self._trainer, self._session, self._trained = trainer, session, trained
        self._recovery, self._status = recovery, recovery.status
        self._replay = Replay(trained, session.weights)
        self._images = RunImages(trainer, session.model, session.weights.held, trained.link, others)
        self._lets_pass = False
        self._streams: weakref.WeakKeyDictionary[ModelProgram, _Stream] = weakref.WeakKeyDictionary()
        session.hooks.guard_by(self)
        trainer.state.recovery = self._status  # type: ignore[attr-defined]
        trainer.add_event_handler(Events.STARTED, self._begin)
        trainer.add_event_handler(Events.COMPLETED, self._drop_image)

    def end(self) -> None:
        """Note that the training has ended: its calls are guarded no more, and another trainer's may be."""
        for event, handler in ((Events.STARTED, self._begin), (Events.COMPLETED, self._drop_image), *self._last()):
            if self._trainer.has_event_handler(handler, event):
                self._trainer.remove_event_handler(handler, event)
        self._drop_image()
        self._streams.clear()
        self._replay.forget()

    def _begin(self, engine: Engine) -> None:
        engine.state.recovery = self._status  # type: ignore[attr-defined]
        self._drop_image()
        self._replay.forget()
        # Registered anew, so that they come after all other handlers, and save the state that those have left.
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
        replay, settings = self._replay, self._recovery
        interrupted, age = settings._interrupted, time.monotonic() - replay.taken_at
        due = replay.snapshot is not None and (
            self._images.newest is None
            or replay.calls >= settings.every
            or (replay.calls and replay.held_bytes >= settings.batch_bytes)
            or (replay.calls and settings.seconds is not None and age >= settings.seconds)
        )
        if due or (interrupted is not None and replay.calls):
            self._images.take(self._take_snapshot())
        if interrupted is not None:
            interrupted()

    def train(self, leaves: Sequence[Any], batch: Any) -> Any:
        """Make one training call, with retries; if they fail, the run ends with its state saved."""
        session, replay = self._session, self._replay
        program, link = self._trained.program, self._trained.link
        replay.example = leaves, batch
        compiled = program.compiled is not None
        if not compiled:
            replay.take()  # of the host's values: there are no moments to be read before the program is loaded
        elif (
            replay.snapshot is None
            or session.weights.programs.training_is_stale
            or link.has_unsent()
            or not program.ready
        ):
            # Before values of the host are sent: a fault during the copy loses values that only the device has.
            self._take_snapshot()

        def call() -> Any:
            nonlocal compiled
            executor = session.calls.prepare(leaves, batch)
            if not compiled:
                self._take_snapshot()
                compiled = True
            return executor(*leaves)

        output = self._retried(call, self._restore_training)
        replay.made(leaves)
        return output

    def evaluate(self, program: ModelProgram, call: Callable[[], Any]) -> Any:
        """Make one inference call, with retries; raises as `train` does."""
        if self._recovery._interrupted is not None:
            self._recovery._interrupted()
        training_is_lost = False

        def call_and_follow() -> Any:
            if program not in self._streams:
                self._streams[program] = _Stream(started_stream(program))
            stream = self._streams[program]
            output = call()
            if stream.drawn_from is not False:
                after = read_stream(program)
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
        if self._lets_pass:
            return action()
        result: _T = self._retried(lambda: self._passed(action), self._restore_training)
        return result

    def _passed(self, action: Callable[..., _T], *args: Any) -> _T:
        """Return the result of an action, whose copies are not guarded: the action itself is retried."""
        before, self._lets_pass = self._lets_pass, True
        try:
            return action(*args)
        finally:
            self._lets_pass = before

    def _retried(
        self,
        action: Callable[[], Any],
        repair: Callable[[], None],
        decided: Callable[[Decision], None] = lambda decision: None,
    ) -> Any:
        """Return the result of an action, called again after every fault that can be retried.

        Before that `repair` is called; a fault in it is one more fault.
        """
        attempt = 0
        while True:
            try:
                if attempt:
                    repair()
                result = action()
                break
            except (backend.poptorch().RecoverableError, backend.poptorch().UnrecoverableError) as error:
                attempt += 1
                decided(self._decide(error, attempt))
        if attempt:
            self._status.recoveries += 1
            logger.info("Recovered; %d calls were repeated in this run so far.", self._status.replayed_calls)
            self._session.hooks.fire(IPUEvents.DEVICE_RECOVERED)
        return result

    def forget(self) -> None:
        self._replay.forget()

    def _restore_training(self) -> None:
        """Bring the training program back to where it was, if a snapshot has been taken."""
        if self._replay.snapshot is not None:
            self._status.replayed_calls += self._passed(self._replay.run)

    def _abandon(self, program: ModelProgram) -> None:
        stream = self._streams.get(program)
        self._passed(program.abandon, None if stream is None else stream.state)

    def _decide(self, error: Exception, attempt: int) -> Decision:
        """Handle a fault; returns if the call is to be repeated, and raises otherwise."""
        recovery, iteration = self._recovery, self._trainer.state.iteration
        limits = recovery.retries, recovery.backoff, recovery.reset is not None
        decision = decide(error, iteration, attempt, *limits)
        self._status.note(decision)
        logger.warning(
            "Device fault at iteration %d, attempt %d of %d (%s): %s. %s",
            decision.iteration,
            attempt,
            recovery.retries,
            decision.recovery_action or "unrecoverable",
            decision.action,
            decision.error,  # the error itself would keep its frames alive in kept records
        )
        self._session.hooks.fire(IPUEvents.DEVICE_FAULT)
        if decision.action in (STOP, EXIT):
            self._end_run(decision, error)
        if decision.wait:
            recovery._sleep(decision.wait)
        if decision.action == RESET and recovery.reset is not None:
            for program in (*self._session.evaluations, self._trained.program):
                self._abandon(program)
            try:
                recovery.reset(decision.recovery_action or "")
            except Exception as failure:
                logger.exception("The reset hook failed.")
                self._end_run(dataclasses.replace(decision, action=STOP), failure)
        return decision

    def _end_run(self, decision: Decision, error: Exception) -> None:
        """Save the newest state, leave the model with it, and raise."""
        path = self.save()
        if self._replay.snapshot is not None:
            self._passed(self._replay.put_back)
        image = self._images.newest
        if image is not None and path is not None:
            where = f"Its state after iteration {image.iteration} is in {path}."
        else:
            where = "Nothing has been trained since the run started or was resumed, so there was nothing to save."
        again = f"Go on with: {self._recovery.command or resume_command()}"
        if decision.action == EXIT:
            logger.error("The IPUs need a %s; the run ends. %s %s", decision.recovery_action, where, again)
            raise ResetNeeded from error
        raise RecoveryError(
            f"A device call of iteration {decision.iteration} failed {decision.attempt} time(s), the last time with: "
            f"{error}. {where} {again}"
        ) from error

    def save(self) -> Optional[Path]:
        path = self._images.write(self._recovery.folder)
        if path is not None:
            self._status.saved = path
            self._session.hooks.fire(IPUEvents.STATE_SAVED)
        return path

    def _take_snapshot(self) -> Snapshot:
        started = time.perf_counter()
        snapshot = self._replay.take()
        self._status.snapshots += 1
        self._status.snapshot_seconds += time.perf_counter() - started
        self._session.hooks.fire(IPUEvents.SNAPSHOT_TAKEN)
        return snapshot
