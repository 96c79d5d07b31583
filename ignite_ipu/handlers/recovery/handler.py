"""`Recovery`: training survives device faults, and what cannot be survived ends with everything saved."""

from __future__ import annotations

import os
import time
import weakref
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Union

from ignite.engine import Engine

from ignite_ipu.checkpoints.atomic_files import remove_unfinished
from ignite_ipu.checkpoints.resuming import resume_from
from ignite_ipu.handlers.recovery.decisions import RecoveryStatus
from ignite_ipu.handlers.recovery.guard import GuardedTraining, RecoverySettings
from ignite_ipu.session.session import session_of

__all__ = ["Recovery"]


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
        self._settings = RecoverySettings(
            self.folder, every, seconds, batch_bytes, retries, backoff, reset, command, lambda wait: self._sleep(wait)
        )
        self._to_save = dict(to_save or {})
        self._resume = resume
        self._sleep: Callable[[float], None] = time.sleep
        # Weakly: the session has it until the training ends.
        self._guarded: Callable[[], Optional[GuardedTraining]] = lambda: None

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
        # What may be refused comes first: a trainer whose attaching fails is not guarded.
        resumed = resume_from(self.folder, {**own, **self._to_save}, self._resume)
        others = {name: value for name, value in self._to_save.items() if name not in own}
        guarded = GuardedTraining(trainer, session, session.trained, others, self._settings, self.status)
        guarded.attach()
        self._guarded = weakref.ref(guarded)
        return resumed

    def interrupt(self, leave: Optional[Callable[[], None]]) -> None:
        """Call `leave` as soon as the state of the run can be saved: between iterations, or within an evaluation.

        Args:
            leave: Saves and raises; None to take the wish back.
        """
        guarded = self._guarded()
        if guarded is not None:
            guarded.interrupt(leave)

    def save(self) -> Optional[Path]:
        """Write the newest state that a run can go on from; returns the file, None when there is nothing to save.

        Nothing is asked of the device, and any thread may call it.

        Raises:
            CheckpointError: It cannot be written.
        """
        guarded = self._guarded()
        return None if guarded is None else guarded.save()
