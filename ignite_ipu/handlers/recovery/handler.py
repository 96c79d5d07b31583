"""`Recovery`: training survives device faults, and what cannot be survived ends with everything saved."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, List, Mapping, Optional, Sequence, Union

from ignite.engine import Engine, Events

from ignite_ipu import backend
from ignite_ipu.checkpoints.atomic_files import remove_unfinished
from ignite_ipu.checkpoints.resuming import resume_from
from ignite_ipu.errors import RecoveryError
from ignite_ipu.handlers.recovery.copies import GuardedCopies
from ignite_ipu.handlers.recovery.decisions import EXIT, RESET, STOP, Decision, RecoveryStatus, decide
from ignite_ipu.handlers.recovery.exit import ResetNeeded, resume_command
from ignite_ipu.handlers.recovery.images import RunImages
from ignite_ipu.handlers.recovery.replay import Replay, Snapshot
from ignite_ipu.session.events import IPUEvents

if TYPE_CHECKING:
    from ignite_ipu.engines.engine import IPUTrainer
    from ignite_ipu.session.program import Program
    from ignite_ipu.session.session import IPUSession

__all__ = ["Recovery"]

_logger = logging.getLogger("ignite_ipu")


@dataclasses.dataclass
class _Stream:
    """An inference program's random stream.

    Attributes:
        state: After the last call that succeeded; None before the program was compiled.
        drawn_from: Whether calls change it; None when that is not known yet.
    """

    state: Optional[List[int]]
    drawn_from: Optional[bool] = None


class Recovery:
    """Makes device faults invisible to the run where PopTorch says how, and otherwise ends it with its state saved.

    When a device call fails with IPU_RESET, the IPUs are attached again with the newest snapshot, the calls since then
    are repeated, and the failed one is made again: weights, optimizer, random numbers, metrics and logs are those of a
    run without the fault. Evaluations are covered, too. Other resets are the `reset` hook's business; without one the
    state is saved and the process exits with code 76, telling the command that goes on. After an unrecoverable fault,
    or more than `retries` of one call, the state is saved and `RecoveryError` raised.

    Where the options have no `randomSeed`, random streams start at torch's initial seed: PopTorch would not say where
    they do, and they could not be gone back to.

    A snapshot costs one download of weights and optimizer state between two iterations, and the host's memory for them.
    Batches since the snapshot are kept for the repetition.

    Args:
        folder: Where the state of an ended run is written, as `recovery_<iteration>.pt`.
        to_save: What else belongs to the run's state, as for Ignite's `Checkpoint`: schedulers, for example. Trainer,
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
        status: What has been done so far; also the trainer's `state.recovery`.
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
        self._to_save = dict(to_save or {})
        self._every, self._seconds, self._batch_bytes = every, seconds, batch_bytes
        self._retries, self._backoff = retries, backoff
        self._reset = reset
        self._resume = resume
        self._command = command
        self._sleep: Callable[[float], None] = time.sleep
        self._trainer: Optional[IPUTrainer] = None
        self._images: Optional[RunImages] = None
        self._streams: weakref.WeakKeyDictionary[Program, _Stream] = weakref.WeakKeyDictionary()
        self._interrupted: Optional[Callable[[], None]] = None

    # -- attaching ------------------------------------------------------------------------------------------------

    def attach(self, trainer: IPUTrainer) -> Optional[Path]:
        """Guard this trainer's calls and those of all evaluators over its model, until its training ends.

        Returns:
            The checkpoint that the run goes on from, if `resume` found one.

        Raises:
            ValueError: The model has such a handler already, or `to_save` renames the trainer, model or optimizer.
            CheckpointError: `resume` found a checkpoint that cannot be loaded. Nothing is guarded then.
        """
        session = trainer.ipu
        if session.guard is not None:
            raise ValueError("This trainer's device calls are guarded already: attach one Recovery handler.")
        if session.link is None:
            raise ValueError("Recovery guards training: attach it to an engine that create_ipu_trainer returned.")
        own = {"trainer": trainer, "model": session.model, "optimizer": session.link.conversion.source}
        for name, value in self._to_save.items():
            if own.get(name, value) is not value:
                raise ValueError(f"to_save[{name!r}] is not this trainer's {name}, which has that name in the file.")
        remove_unfinished(self.folder)
        # What may be refused comes first: a trainer whose attaching fails is not guarded.
        resumed = resume_from(self.folder, {**own, **self._to_save}, self._resume)
        self._trainer = trainer
        self._session: IPUSession = session
        self._replay = Replay(session)
        others = {name: value for name, value in self._to_save.items() if name not in own}
        self._images = RunImages(session, {"trainer": trainer, **others})
        self._copies = GuardedCopies(session, self._copied)
        self._copies.attach()
        session.guard = self
        trainer.state.recovery = self.status  # type: ignore[attr-defined]
        trainer.add_event_handler(Events.STARTED, self._begin)
        trainer.add_event_handler(Events.COMPLETED, self._end)
        return resumed

    def end(self) -> None:
        """Note that the training has ended: its calls are guarded no more, and another trainer's may be."""
        trainer, self._trainer = self._trainer, None
        assert trainer is not None
        for event, handler in (
            (Events.STARTED, self._begin),
            (Events.COMPLETED, self._end),
            (Events.GET_BATCH_STARTED, self._before_batch),
            (Events.EPOCH_COMPLETED, self._after_epoch),
        ):
            if trainer.has_event_handler(handler, event):
                trainer.remove_event_handler(handler, event)
        self._end()
        self._streams.clear()
        self._replay.forget()

    def _begin(self, engine: Engine) -> None:
        engine.state.recovery = self.status  # type: ignore[attr-defined]
        self._end()
        self._replay.forget()
        # Registered anew, so that they come after everybody else's: what they save is what those have left.
        for event, handler in (
            (Events.GET_BATCH_STARTED, self._before_batch),
            (Events.EPOCH_COMPLETED, self._after_epoch),
        ):
            if engine.has_event_handler(handler, event):
                engine.remove_event_handler(handler, event)
            engine.add_event_handler(event, handler)

    def _end(self) -> None:
        assert self._images is not None
        self._images.newest = None

    def _before_batch(self, engine: Engine) -> None:
        # The state between two epochs is the one after the first: handlers of the next one's start must not run twice.
        if engine.state.epoch_length is None or engine.state.iteration % engine.state.epoch_length:
            self._between_iterations()

    def _after_epoch(self) -> None:
        self._between_iterations()

    def _between_iterations(self) -> None:
        assert self._images is not None
        replay, image = self._replay, self._images.newest
        if replay.snapshot is None or (not replay.calls and image is not None):
            due = False
        else:
            due = (
                image is None
                or replay.calls >= self._every
                or replay.held_bytes >= self._batch_bytes
                or (self._seconds is not None and replay.age >= self._seconds)
            )
        if due or (self._interrupted is not None and replay.calls):
            assert self._trainer is not None
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
        program, link = session.training, session.link
        assert program is not None and link is not None
        replay.about_to_make(leaves, batch)
        compiled = program.compiled
        if not compiled:
            program.start_random_stream()
            replay.take()  # of what is on the host: there are no moments to be read before the program is loaded
        elif replay.snapshot is None or session.weights.training_is_stale or link.loaded or not program.ready:
            # Before what the host has set is sent: a fault while it is loses what the device alone has.
            self._take_snapshot()

        def call() -> Any:
            nonlocal compiled
            session.prepare_call(leaves, batch)
            self._copies.guard(program.executor)
            if not compiled:
                self._take_snapshot()
                compiled = True
            assert program.executor is not None
            return program.executor(*leaves)

        output = self._made_good(call, self._restore_training)
        replay.made(leaves)
        return output

    def evaluate(self, program: Program, call: Callable[[], Any]) -> Any:
        """Make one inference call, again and again if need be.

        Raises:
            RecoveryError, ResetNeeded: As for `train`.
        """
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

        return self._made_good(call_and_follow, repair, give_up)

    def _copied(self, action: Callable[[], Any]) -> Any:
        return self._made_good(action, self._restore_training)

    def _made_good(
        self,
        action: Callable[[], Any],
        repair: Callable[[], None],
        decided: Callable[[Decision], None] = lambda decision: None,
    ) -> Any:
        """Return what an action returns, made again after every fault that can be made good.

        Args:
            action: Calls the device.
            repair: Called before it is made again; a fault in the repair is one more fault.
            decided: Called with what was decided about each fault.
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

    def interrupt(self, leave: Optional[Callable[[], None]]) -> None:
        """Call `leave` as soon as the state of the run can be saved: between iterations, or within an evaluation.

        Args:
            leave: Saves and raises; None to take the wish back.
        """
        self._interrupted = leave

    def forget(self) -> None:
        """Note that the host has set something that the device will take over."""
        self._replay.forget()

    def _restore_training(self) -> None:
        """Bring the training program back to where it was, if a snapshot has been taken."""
        if self._replay.snapshot is not None and self._session.training is not None:
            with self._copies.let_pass():
                self.status.replayed_calls += self._replay.run()

    def _abandon(self, program: Program) -> None:
        with self._copies.let_pass():
            program.abandon()
        if program in self._streams:
            program.random_state = self._streams[program].state

    # -- decisions ------------------------------------------------------------------------------------------------

    def _decide(self, error: Exception, attempt: int) -> Decision:
        """Do what a fault asks for; returns when the call is to be made again.

        Raises:
            RecoveryError, ResetNeeded: It is not.
        """
        assert self._trainer is not None
        decision = decide(
            error,
            self._trainer.state.iteration,
            attempt,
            retries=self._retries,
            backoff=self._backoff,
            has_reset=self._reset is not None,
        )
        self.status.note(decision)
        _logger.warning(
            "Device fault at iteration %d, attempt %d of %d (%s): %s. %s",
            decision.iteration,
            attempt,
            self._retries,
            decision.recovery_action or "unrecoverable",
            decision.action,
            decision.error,  # the error itself would keep its frames alive in kept records
        )
        self._session.fire(IPUEvents.DEVICE_FAULT)
        if decision.action in (STOP, EXIT):
            self._end_run(decision, error)
        if decision.wait:
            self._sleep(decision.wait)
        if decision.action == RESET:
            self._reset_devices(decision, error)
        return decision

    def _reset_devices(self, decision: Decision, error: Exception) -> None:
        assert self._reset is not None and decision.recovery_action is not None
        session = self._session
        for program in [*session.evaluations, *([session.training] if session.training else [])]:
            self._abandon(program)
        try:
            self._reset(decision.recovery_action)
        except Exception as failure:
            _logger.exception("The reset hook failed.")
            self._end_run(dataclasses.replace(decision, action=STOP), failure)

    def _end_run(self, decision: Decision, error: Exception) -> None:
        """Save the newest state, leave the model with it, and raise."""
        path = self.save()
        if self._replay.snapshot is not None:
            with self._copies.let_pass():
                self._replay.put_back()
        image = None if self._images is None else self._images.newest
        if image is not None and path is not None:
            where = f"Its state after iteration {image.iteration} is in {path}."
        else:
            where = "Nothing has been trained since the run started or was resumed, so there was nothing to save."
        again = f"Go on with: {self._command or resume_command()}"
        if decision.action == EXIT:
            _logger.error("The IPUs need a %s; the run ends. %s %s", decision.recovery_action, where, again)
            raise ResetNeeded from error
        raise RecoveryError(
            f"A device call of iteration {decision.iteration} failed {decision.attempt} time(s), the last time with: "
            f"{error}. {where} {again}"
        ) from error

    def _recovered(self) -> None:
        self.status.recoveries += 1
        _logger.info("Recovered; %d calls were repeated in this run so far.", self.status.replayed_calls)
        self._session.fire(IPUEvents.DEVICE_RECOVERED)

    # -- state ----------------------------------------------------------------------------------------------------

    def save(self) -> Optional[Path]:
        """Write the newest state that a run can go on from; returns the file, None when there is nothing to save.

        Nothing is asked of the device, and any thread may call it.

        Raises:
            CheckpointError: It cannot be written.
        """
        path = None if self._images is None else self._images.write(self.folder)
        if path is not None:
            self.status.saved = path
            self._session.fire(IPUEvents.STATE_SAVED)
        return path

    def _take_snapshot(self) -> Snapshot:
        started = time.perf_counter()
        assert self._session.training is not None
        self._session.training.start_random_stream()
        snapshot = self._replay.take()
        self.status.snapshots += 1
        self.status.snapshot_seconds += time.perf_counter() - started
        self._session.fire(IPUEvents.SNAPSHOT_TAKEN)
        return snapshot


def _faults() -> Any:
    poptorch = backend.poptorch()
    return poptorch.RecoverableError, poptorch.UnrecoverableError
