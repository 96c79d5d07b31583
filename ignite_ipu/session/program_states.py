"""States of a program before and beside its compiled one, each with the things that exist in it.

`Asked` becomes `Wrapped` by PopTorch, and `Wrapped` a `CompiledProgram`; `SetAside` keeps either of these two while
another program trains the same weights. Each of them ends as `Asked`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, List, Optional, Sequence, Union

from ignite_ipu.errors import SessionError
from ignite_ipu.poptorch_types import Executor
from ignite_ipu.program.forward.module_attributes import ModuleAttributes
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.micro_batches import sample_count
from ignite_ipu.program.options import misspelt_settings_named
from ignite_ipu.program.tensors.raw import classes_of, put_classes
from ignite_ipu.program.traced_places import changes_in_every_call
from ignite_ipu.session.carrying import CarryingExecutor
from ignite_ipu.session.compilation import check_compiled, traced_on_host
from ignite_ipu.session.compiled_program import CompiledProgram
from ignite_ipu.session.executables import ExportedProgram, PathLike
from ignite_ipu.session.hooks import IPUEvents
from ignite_ipu.session.host_counters import counter_warnings_aside
from ignite_ipu.session.program_source import ProgramSource
from ignite_ipu.session.shared_memory import refuse_shared_writes


class _NotCompiled:
    """A program that is not compiled.

    Args:
        source: The parts that it is made from.
        geometry: The arithmetic of calls of the program that was destroyed; None if there was none.
        executable: The file to take the program from instead of compiling it; None to compile.

    Attributes:
        calls: Of no use: the program is gone that was called.
    """

    calls = 0

    def __init__(
        self,
        source: ProgramSource,
        geometry: Optional[BatchGeometry] = None,
        executable: Optional[ExportedProgram] = None,
    ) -> None:
        self.source, self.geometry, self.executable = source, geometry, executable

    def set_modes(self) -> None:
        """Put the user's model in training or evaluation mode, as native steps do in every iteration."""
        self.source.step.train(self.source.resolved.training)

    def take(self, executable: ExportedProgram) -> None:
        """Load an executable in the place of the next compilation."""
        self.executable = executable

    def export(self, path: PathLike) -> None:
        """Refuse to write a program.

        Raises:
            SessionError: There is none.
        """
        raise SessionError("There is no compiled program to export: compile it for a batch first.")

    def place(self, *parts: Any) -> None:
        """Plan or estimate with a batch; see `Placing`."""


class Asked(_NotCompiled):
    """A program that PopTorch has not wrapped."""

    executor: None = None

    def place(self, *parts: Any) -> None:
        source = self.source
        if source.placing is not None:
            step = source.step.again()
            source.placing.prepare(step, step.arguments(*parts, micro_batches=source.resolved.micro_batches))

    def wrap(self, leaves: Sequence[Any]) -> Wrapped:
        """Return the program wrapped by PopTorch, for the first batch."""
        source = self.source
        refuse_shared_writes(source.step, leaves, source.resolved.micro_batches, source.kind.training)
        # Of layers on several IPUs attributes are not kept.
        computes = source.placing is None and source.effects.find_attributes(leaves)
        source.effects.carry_integers(leaves, several_ipus=source.placing is not None)
        # PopTorch lets replicas write buffers of their own, or none.
        may_write = source.kind.training and source.resolved.own_buffers
        own_statistics = may_write and (computes or source.step.tracks_statistics())
        options = source.wrapped_options(leaves, own_statistics)
        if source.kind.updates:
            # At last: calls of the model on the host, as for a plan, begin to watch its weights again.
            source.weights.detector.unwatch()
        executor = source.kind.wrap(source.step, options)
        if source.step.integers:
            executor = CarryingExecutor(executor, source.step.integers)
        source.weights.add(executor, source.kind.updates)
        return Wrapped(executor, own_statistics, source, self.geometry, self.executable)


class Wrapped(_NotCompiled):
    """A program that PopTorch has wrapped: it is about to be compiled, or that has failed.

    Attributes:
        executor: PopTorch's executor.
        own_statistics: Whether replicas keep normalisation statistics of their own.
    """

    def __init__(
        self,
        executor: Executor,
        own_statistics: bool,
        source: ProgramSource,
        geometry: Optional[BatchGeometry],
        executable: Optional[ExportedProgram],
    ) -> None:
        super().__init__(source, geometry, executable)
        self.executor, self.own_statistics = executor, own_statistics

    def compile(self, leaves: Sequence[Any], batch: Any) -> CompiledProgram:
        """Return the program compiled for a batch; the leaves are the arguments of its call."""
        source, step, hooks = self.source, self.source.step, self.source.hooks
        source.weights.to_host()
        source.effects.check_buffers(leaves)
        step.shown.keep(step)
        hooks.fire(IPUEvents.COMPILE_STARTED)
        # The flags of the user's model are read while it is traced, and wrapping does not set them.
        step.train(source.kind.training)
        decisions = source.effects.decisions()
        attributes = decisions.state
        before, kept = attributes.values(), ModuleAttributes(step)
        try:
            self._compile(leaves)
        except BaseException:
            kept.put_back()
            step.shown.forget_trace()
            step.layout.forget()
            raise
        traced = attributes.values()
        kept.settle(step.shown.constant)
        step.shown.forget_trace()
        settled = attributes.changed(traced)
        changed = [name for name in attributes.changed(before) if name not in settled]
        kept.put_back(kept=step.computed.names(step))
        python, trace = traced_on_host(source, leaves, decisions)
        if source.on_trace is not None and trace.varying:
            source.on_trace(changes_in_every_call(step.model, trace.varying), trace.retrace.only_keeps)
        check_compiled(source, trace, self.own_statistics)
        python = python if python.complete else step.python_state()
        compiled = CompiledProgram(source, self.executor, self._geometry_of(batch), python, changed, trace)
        if self.executable is not None:
            self.executable.check(trace.retrace.fingerprint())
        return compiled

    def _compile(self, leaves: Sequence[Any]) -> None:
        source, step = self.source, self.source.step
        placed = contextlib.nullcontext() if source.placing is None else source.placing.applied(step)
        first = source.hooks.fired[IPUEvents.COMPILE_STARTED] == 1
        with placed, misspelt_settings_named(), counter_warnings_aside(step, first):
            if self.executable is None:
                self.executor.compile(*leaves)
            else:
                self.executable.give_to(self.executor, step, source.kind.link)

    def _geometry_of(self, batch: Any) -> BatchGeometry:
        samples, resolved = sample_count(batch if isinstance(batch, tuple) else (batch,)), self.source.resolved
        return dataclasses.replace(resolved.geometry, micro_batch_size=samples // resolved.micro_batches or 1)


class SetAside:
    """A program that waits while another one trains the same weights.

    Args:
        before: Its state before.
        lends: Whether the other program has the device's optimizer, which belongs to one executor at a time.

    Attributes:
        calls: Of no use: the program is not called.
    """

    calls = 0

    def __init__(self, before: Union[Wrapped, CompiledProgram], lends: bool) -> None:
        self.before, self._lends = before, lends
        self.source, self.executor, self.geometry = before.source, before.executor, before.geometry
        kind, step = self.source.kind, self.source.step
        if lends:
            kind.take_optimizer(self.executor)
        self.source.weights.remove(self.executor)
        self._classes: List[type] = classes_of(step) if kind.updates else []
        if kind.updates:
            kind.unwrap(step)

    def resume(self) -> Union[Wrapped, CompiledProgram]:
        """Return the state before, in which the program trains again, with the weights of the host."""
        source, kind = self.source, self.source.kind
        if self._lends:
            kind.give_optimizer(self.executor)
        if kind.updates:
            put_classes(source.step, self._classes)
        source.weights.add(self.executor, kind.updates, stale=True)
        if isinstance(self.before, CompiledProgram):
            self.before.count_batches()
        return self.before

    def set_modes(self) -> None:
        self.before.set_modes()

    def take(self, executable: ExportedProgram) -> None:
        self.before.take(executable)

    def export(self, path: PathLike) -> None:
        self.before.export(path)

    def place(self, *parts: Any) -> None:
        self.before.place(*parts)


State = Union[Asked, Wrapped, CompiledProgram, SetAside]
