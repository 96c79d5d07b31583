"""`IPUEvents`, and `SessionHooks`: callbacks that engines, handlers and captured models hang into a session."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any, Callable, Optional, Protocol, Sequence, Tuple, TypeVar

import torch
from ignite.engine import Engine, EventEnum

from ignite_ipu.errors import SessionError, logger
from ignite_ipu.torch_names.engines import event_handlers_of

_T = TypeVar("_T")


class IPUEvents(EventEnum):
    """Events of the engines that `create_ipu_trainer` and `create_ipu_evaluator` return.

    - COMPILE_STARTED, COMPILE_COMPLETED: around the first step, which compiles the program.
    - DEVICE_ATTACHING, DEVICE_ATTACHED: around taking a program's IPUs; DEVICE_DETACHED: it gave them back.
    - WEIGHTS_TO_HOST, WEIGHTS_TO_DEVICE: all weights were copied by this library; PopTorch's own copies, when a program
      is loaded or a weight is read, are part of that and fire no event.
    - OPTIMIZER_SENT: changed hyper-parameters went to the device.
    - SNAPSHOT_TAKEN: a `Recovery` handler has copied all that a device call changes.
    - DEVICE_FAULT: a device call failed; `state.recovery` has the error and the decision.
    - DEVICE_RECOVERED: the failed call has been made good.
    - STATE_SAVED: the newest good state was written to a file, because the run is about to end.
    - RUN_FAILED: an exception ends the run; the IPUs have been given back.
    """

    COMPILE_STARTED = "compile_started"
    COMPILE_COMPLETED = "compile_completed"
    DEVICE_ATTACHING = "device_attaching"
    DEVICE_ATTACHED = "device_attached"
    DEVICE_DETACHED = "device_detached"
    WEIGHTS_TO_HOST = "weights_to_host"
    WEIGHTS_TO_DEVICE = "weights_to_device"
    OPTIMIZER_SENT = "optimizer_sent"
    SNAPSHOT_TAKEN = "snapshot_taken"
    DEVICE_FAULT = "device_fault"
    DEVICE_RECOVERED = "device_recovered"
    STATE_SAVED = "state_saved"
    RUN_FAILED = "run_failed"


class CallGuard(Protocol):
    """Makes the calls and copies of a session, and retries the ones that fail."""

    def train(self, leaves: Sequence[Any], batch: Any) -> Any:
        """Return the training program's result for one batch, after `session.calls.prepare(leaves, batch)`."""

    def evaluate(self, program: Any, call: Callable[[], Any]) -> Any:
        """Return the result of `call`, which calls an inference program."""

    def copy(self, action: Callable[[], _T]) -> _T:
        """Return the result of `action`, which copies from the training program's IPUs."""

    def forget(self) -> None:
        """Note that the host has set something that the device will take over, such as a random state."""

    def end(self) -> None:
        """Note that the training, whose calls it makes, has ended."""


class Gradients(Protocol):
    """The gradients of parameters that code may read or replace."""

    def show(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        """Return `parameter.grad`."""

    def put(self, parameter: torch.Tensor, gradient: Optional[torch.Tensor]) -> bool:
        """Follow `parameter.grad = gradient`, before it is done; None is for `del parameter.grad`, too.

        Returns False if it is the gradient that is there already.
        """


Edited = Sequence[Tuple[torch.Tensor, Optional[torch.Tensor]]]
"""Tensors that were written, each with a copy of its value before; None where that was not kept."""


class SessionFollower:
    """Follows the uses of a model whose programs a session has. Its methods do nothing; subclasses override them.

    Attributes:
        records: Whether functions of weights are recorded.
    """

    records = False

    @property
    def gradients(self) -> Optional[Gradients]:
        """Shows and follows `parameter.grad`; None where the attribute is PyTorch's."""
        return None

    def record(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of a PyTorch function that is called with weights, `NotImplemented` for the host's."""
        return NotImplemented

    def check_shown(self) -> None:
        """Follow a use of the newest weights or the optimizer's state, which may be refused."""

    def give_back(self) -> bool:
        """Allow all uses from now on; returns whether one would have been refused."""
        return False

    def check_evaluation(self) -> None:
        """Follow an evaluation that begins, which may be refused."""

    def before_buffer_read(self) -> None:
        """Follow a read of buffers, which calls may have yet to write."""

    def before_buffers_written(self, buffers: Sequence[torch.Tensor]) -> None:
        """Follow a call of an inference program that has written buffers, before the host's copies get the values."""

    def after_view(self, tensor: torch.Tensor) -> None:
        """Follow a view of a tensor that was made, through which code may write into it."""

    def after_edits(self, edited: Edited) -> None:
        """Follow writes of the host into tensors, which were found."""

    def refuse_frozen(self, reason: str) -> None:
        """Raise an error: forward computes with Python values that have changed, and a program with previous ones."""
        raise SessionError(reason)

    def report_kept(self, reason: str) -> None:
        """Report a forward that only adds tensors of each call to containers, which a program does once."""
        logger.warning(reason)


class SessionHooks:
    """The observers of one session: its engines, a guard of its calls and a follower.

    Attributes:
        guard: Makes the device calls instead of the session: a `Recovery` handler's; None without one.
        follower: Follows the uses of the model.
        shows_gradients: Whether steps bring gradients back, and `parameter.grad` has them.
    """

    def __init__(self) -> None:
        self.engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self.guard: Optional[CallGuard] = None
        self.follower = SessionFollower()
        self.shows_gradients = False
        self.fired: Counter[IPUEvents] = Counter()

    def listen(self, engine: Engine) -> None:
        """Fire the session's events on an engine, too."""
        engine.register_events(*IPUEvents)
        self.engines.add(engine)

    def guard_by(self, guard: CallGuard) -> None:
        """Have a guard make the device calls until `end_guard`."""
        self.guard = guard

    def follow_by(self, follower: SessionFollower) -> None:
        """Have another follower until `end`."""
        self.follower = follower

    def show_gradients(self) -> None:
        """Note that steps bring gradients back, which `parameter.grad` has."""
        self.shows_gradients = True

    def end_guard(self) -> None:
        guard, self.guard = self.guard, None
        if guard is not None:
            guard.end()

    def end(self) -> None:
        """Have neither a guard nor a follower any more."""
        self.end_guard()
        self.follower = SessionFollower()

    def record(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of a PyTorch function that is called with weights, `NotImplemented` for the host's."""
        return self.follower.record(func, args, kwargs)

    def check_shown(self) -> None:
        """Refuse to show the newest weights and the optimizer's state where the follower does."""
        self.follower.check_shown()

    def copy(self, action: Callable[[], _T]) -> _T:
        return action() if self.guard is None else self.guard.copy(action)

    def fire(self, event: IPUEvents) -> None:
        logger.debug("%s", event.value)
        self.fired[event] += 1
        for engine in list(self.engines):
            if not event_handlers_of(engine).get(event):
                continue  # Ignite compares an event with all that an engine has, in Python
            # Handlers of the current event may still read its name.
            last = engine.last_event_name
            engine.fire_event(event)
            engine.last_event_name = last
