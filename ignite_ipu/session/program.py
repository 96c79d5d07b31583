"""`ModelProgram`: a module that is compiled on first use, in the state that it has reached."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence, TypeVar

from ignite_ipu import backend
from ignite_ipu.poptorch_types import Executor, Options
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.step import BatchStep
from ignite_ipu.session.compiled_program import CompiledProgram
from ignite_ipu.session.executables import ExportedProgram
from ignite_ipu.session.hooks import IPUEvents, SessionHooks
from ignite_ipu.session.program_kinds import ProgramKind
from ignite_ipu.session.program_source import OnTrace, ProgramSource
from ignite_ipu.session.program_states import Asked, SetAside, State, Wrapped
from ignite_ipu.session.resolved import Resolved
from ignite_ipu.session.side_effects import SideEffects
from ignite_ipu.session.weights.tracker import Weights

if TYPE_CHECKING:
    from ignite_ipu.session.placement import Placing

# In the place of a lost random state.
_NO_STATE = [0]
_T = TypeVar("_T")


class ModelProgram:
    """A module compiled for training or for evaluation on first use.

    Args:
        step: The module.
        resolved: The options, resolved.
        kind: How PopTorch wraps the module.
        weights: Who holds the newest weights.
        hooks: The observers of the session.
        placing: The placement on several IPUs; None for a model on one IPU, or with its own annotations.
        on_trace: Called once the model is traced, and may refuse it.

    Attributes:
        step, resolved, kind, placing: The arguments.
        effects: The side effects of calls on the host.
        state: The state of the program.
        stream: The random state that the next load begins with; None for the one that the program has.
        changed: Reasons for another compilation, in words; empty if only the user requested it.
    """

    def __init__(
        self,
        step: BatchStep,
        resolved: Resolved,
        kind: ProgramKind,
        weights: Weights,
        hooks: SessionHooks,
        placing: Optional[Placing] = None,
        on_trace: Optional[OnTrace] = None,
    ) -> None:
        self.step, self.resolved, self.kind, self.placing = step, resolved, kind, placing
        self.effects = SideEffects(step, resolved, weights)
        if kind.training:
            step.maximizes = kind.maximizes
        self._source = ProgramSource(step, resolved, kind, weights, hooks, self.effects, placing, on_trace, type(step))
        self.state: State = Asked(self._source)
        self.stream: Optional[List[int]] = None
        self.changed: List[str] = []

    @property
    def options(self) -> Options:
        """The options: once the module is wrapped, PopTorch's own copy, with which it is compiled."""
        executor = self.state.executor
        return self.resolved.options if executor is None else executor.options

    @property
    def executor(self) -> Optional[Executor]:
        """PopTorch's executor, None before it has wrapped the module."""
        return self.state.executor

    @property
    def compiled(self) -> Optional[CompiledProgram]:
        """The compiled program, also while it is set aside; None if there is none, for which PopTorch is asked."""
        state = self.state.before if isinstance(self.state, SetAside) else self.state
        return state if isinstance(state, CompiledProgram) and state.executor.isCompiled() else None

    @property
    def ready(self) -> bool:
        """True if the program is compiled and on its IPUs."""
        executor = self.state.executor
        return executor is not None and executor.isAttachedToDevice()

    @property
    def geometry(self) -> Optional[BatchGeometry]:
        """The arithmetic of one call, also of a program that was destroyed; None before first use."""
        return self.state.geometry

    @property
    def ipus(self) -> Optional[int]:
        """IPUs that all replicas take, None while "auto" has not planned them."""
        return self.resolved.ipus if self.placing is None else self.placing.ipus

    def load(self, leaves: Sequence[Any], batch: Any, ahead: bool = False) -> Executor:
        """Bring the program to its IPUs, compiled for this batch if it is not yet, and return the executor.

        If this is `ahead` of calls, the batch may be another one than that of the first call.

        With an offline target (`options.useOfflineIpuTarget()`) it has none, and is compiled alone. After a compilation
        that PopTorch refuses, the next batch may try again.
        """
        if self.executor is None:
            self.effects.set_up(leaves, self._source.hooks.follower.refuse_frozen, ahead)
        compiled = self.compiled or self._compile(leaves, batch)
        executor, hooks = compiled.executor, self._source.hooks
        if self.kind.training:
            compiled.count_batches()
        if executor.options.connection_type == backend.poptorch().ConnectionType.Never:
            return executor  # compiled for IPUs that are elsewhere
        hooks.fire(IPUEvents.DEVICE_ATTACHING)
        if not executor.isAttachedToDevice():
            executor.attachToDevice()
        self._source.weights.programs.loaded(executor)
        hooks.fire(IPUEvents.DEVICE_ATTACHED)
        if self.stream is not None:
            executor.rng_state, self.stream = self.stream, None
        return executor

    def _compile(self, leaves: Sequence[Any], batch: Any) -> CompiledProgram:
        # An executor may have been destroyed, and not by this.
        wrapped = self.state = self.state if isinstance(self.state, Wrapped) else self._forget().wrap(leaves)
        try:
            compiled = wrapped.compile(leaves, batch)
        except BaseException:
            if wrapped.executor.isCompiled():  # a check has refused the program
                wrapped.executor.destroy()
                self._forget(wrapped.executable)
            raise
        self.state, self.changed = compiled, []
        self._source.hooks.fire(IPUEvents.COMPILE_COMPLETED)
        return compiled

    def copied(self, action: Callable[[Executor], _T]) -> Optional[_T]:
        """Return the result of a function that copies from the IPUs of the executor, which a retry may replace."""

        def copy() -> Optional[_T]:
            executor = self.state.executor
            return None if executor is None else action(executor)

        return self._source.hooks.copy(copy) if self.kind.training else copy()

    def detach(self) -> None:
        """Release the IPUs and keep the compiled program; state of the device is saved on the host."""
        if self.ready:
            self.copied(lambda executor: executor.detachFromDevice())
            self._source.hooks.fire(IPUEvents.DEVICE_DETACHED)

    def destroy(self, unwrap: bool = False) -> None:
        """Give everything back; the next use compiles again.

        PopTorch does not undo a wrapping that was never compiled. It is kept for the next compilation, unless `unwrap`.
        """
        if self.compiled is not None:
            attached, stream = self.ready, self.stream
            if attached:
                stream = self.copied(random_state_of)
            self.copied(lambda executor: executor.destroy())
            if self.kind.training:
                self._source.weights.host.counters.advance()
            self.stream = stream
            self._forget()
            if attached:
                self._source.hooks.fire(IPUEvents.DEVICE_DETACHED)
        if unwrap and self.state.executor is not None:
            self._forget()
            self.kind.unwrap(self.step)

    def _forget(self, executable: Optional[ExportedProgram] = None) -> Asked:
        """Return the program as it is asked for, after its executor was destroyed."""
        if isinstance(self.state, Asked):
            return self.state
        self._source.weights.remove(self.state.executor)
        asked = self.state = Asked(self._source, self.state.geometry, executable)
        self.step.layout.forget()
        return asked

    def abandon(self, stream: Optional[List[int]] = None) -> None:
        """Release IPUs whose memory is lost, without reading them; `load` takes IPUs again.

        The random stream goes on from a state, where one is known.
        """
        executor = self.state.executor
        if executor is not None:
            # PopTorch reads before it gives IPUs back, and keeps them when that fails, unless nothing is to be read.
            if self.ready and self.kind.link is not None:
                self.kind.link.give_up()
                with contextlib.suppress(Exception):
                    executor.copyWeightsToDevice()
            if self.ready:
                with contextlib.suppress(Exception):
                    executor.detachFromDevice()
            if self.ready:
                with contextlib.suppress(Exception):
                    executor.rng_state = self.stream or _NO_STATE
                with contextlib.suppress(Exception):
                    executor.detachFromDevice()
            if self.ready:
                # The IPUs are free when the executor is garbage-collected.
                with contextlib.suppress(Exception):
                    executor.destroy()
                with contextlib.suppress(Exception):
                    self.kind.take_optimizer(executor)
                self._source.weights.host.counters.forget()
                self._forget()
                self.kind.unwrap(self.step)
                self.step.__class__ = self._source.step_class
            self._source.hooks.fire(IPUEvents.DEVICE_DETACHED)
        self.stream = stream or self.stream

    def like(self, step: BatchStep, resolved: Resolved) -> ModelProgram:
        """Return a program for another module, which goes on where this one is."""
        source, placing = self._source, self.placing
        if placing is not None and resolved is not self.resolved:
            placing = placing.again(step, resolved)
        kind = self.kind.again()
        successor = ModelProgram(step, resolved, kind, source.weights, source.hooks, placing, source.on_trace)
        successor.stream = self.stream
        return successor

    def set_aside(self, keep_ipus: bool) -> None:
        """Keep the program while another one trains the same weights.

        With `keep_ipus` it keeps its IPUs and its optimizer, for another optimizer's program. Otherwise it gives them
        to another program of the same optimizer.
        """
        self._source.weights.to_host()
        if not keep_ipus:
            self.detach()
            self.stream = self.stream if self.compiled is None else self.copied(random_state_of)
        if isinstance(self.state, (Wrapped, CompiledProgram)):
            self.state = SetAside(self.state, lends=not keep_ipus)

    def go_on(self) -> None:
        """Train with this program again, after `set_aside`, with the weights at that time."""
        if isinstance(self.state, SetAside):
            self.state = self.state.resume()


def random_state_of(executor: Executor) -> Optional[List[int]]:
    """Return an executor's random state; None if it has no seed and never ran."""
    state = executor.rng_state
    return None if state is None else list(state)
