"""`IPUEvents`, and `SessionHooks`: callbacks that engines, handlers and captured models hang into a session."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from typing import Any, Callable, ContextManager, Optional, Protocol, Sequence, Tuple, TypeVar

import torch
from ignite.engine import Engine, EventEnum

from ignite_ipu.errors import logger

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
        """Return the training program's result for one batch, after `session.prepare_call(leaves, batch)`."""

    def evaluate(self, program: Any, call: Callable[[], Any]) -> Any:
        """Return what `call` returns, which calls an inference program."""

    def copy(self, action: Callable[[], _T]) -> _T:
        """Return what `action` returns, which copies from the training program's IPUs."""

    def forget(self) -> None:
        """Note that the host has set something that the device will take over, such as a random state."""

    def end(self) -> None:
        """Note that the training, whose calls it makes, has ended."""


class Gradients(Protocol):
    """The gradients of parameters that code may read or replace."""

    def show(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        """Return `parameter.grad`."""

    def put(self, parameter: torch.Tensor, gradient: Optional[torch.Tensor]) -> None:
        """Follow `parameter.grad = gradient`, before it is done; None is for `del parameter.grad`, too."""


def _allow() -> None:
    pass


Edited = Sequence[Tuple[torch.Tensor, Optional[torch.Tensor]]]
"""Tensors that were written, each with a copy of its value before; None where that was not kept."""


def _ignore(tensors: Sequence[Any]) -> None:
    pass


class SessionHooks:
    """Callbacks of one session.

    Attributes:
        guard: Makes the device calls instead of the session: a `Recovery` handler's; None without one.
        loading: Gives the context in which programs are compiled and brought to their IPUs.
        check_evaluation: Called before each evaluation, to refuse it.
        before_buffer_read: Called before the values of buffers are read, which calls may have yet to write.
        before_buffers_written: Called with buffers that a call of an inference program has written, before the host's
            copies get the values.
        after_edits: Called with the tensors that were found to be written on the host, each with its value before, if
            that was kept.
        refuse_frozen: Called with the reason when forward changes Python values in every call, which a program runs
            once; None to warn of changes in a trace, in every call or in a cache of the first.
        recorder: Does what `record` says; None where the host computes all.
        gradients: Shows and follows `parameter.grad`; None where the attribute is PyTorch's.
        shows_gradients: Whether steps bring gradients back, and `parameter.grad` has them.
        withheld: Called on access to the newest weights or the optimizer's state, to refuse it.
    """

    def __init__(self) -> None:
        self.engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self.guard: Optional[CallGuard] = None
        self.loading: Callable[[], ContextManager[Any]] = contextlib.nullcontext
        self.check_evaluation: Callable[[], None] = _allow
        self.before_buffer_read: Callable[[], None] = _allow
        self.before_buffers_written: Callable[[Sequence[torch.Tensor]], None] = _ignore
        self.after_edits: Callable[[Edited], None] = _ignore
        self.refuse_frozen: Optional[Callable[[str], None]] = None
        self.withheld: Optional[Callable[[], None]] = None
        self.recorder: Optional[Callable[..., Any]] = None
        self.gradients: Optional[Gradients] = None
        self.shows_gradients = False
        self.fired: Counter[IPUEvents] = Counter()

    def end_guard(self) -> None:
        guard, self.guard = self.guard, None
        if guard is not None:
            guard.end()

    def end(self) -> None:
        """Take off the callbacks around calls and programs."""
        self.end_guard()
        self.loading, self.check_evaluation = contextlib.nullcontext, _allow
        self.before_buffer_read, self.before_buffers_written, self.after_edits = _allow, _ignore, _ignore
        self.recorder = self.gradients = None

    def record(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of a PyTorch function that is called with weights, `NotImplemented` for the host's."""
        return NotImplemented if self.recorder is None else self.recorder(func, args, kwargs)

    def check_shown(self) -> None:
        """Refuse to show the newest weights and the optimizer's state where they are withheld."""
        if self.withheld is not None:
            self.withheld()

    def copy(self, action: Callable[[], _T]) -> _T:
        return action() if self.guard is None else self.guard.copy(action)

    def fire(self, event: IPUEvents) -> None:
        logger.debug("%s", event.value)
        self.fired[event] += 1
        for engine in list(self.engines):
            # Handlers of the current event may still read its name.
            last = engine.last_event_name
            engine.fire_event(event)
            engine.last_event_name = last
