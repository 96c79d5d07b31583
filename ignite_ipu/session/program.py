"""One compiled program of a session: its module, its options, its executor, and whether it is on its IPUs."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Hashable, List, Optional, Sequence

import torch
from torch import nn

from ignite_ipu.optimizers import OptimizerLink
from ignite_ipu.program.forward.module_attributes import ModuleAttributes
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.guards.attributes import PythonState
from ignite_ipu.program.guards.randomness import Draws
from ignite_ipu.program.guards.reads import reads_noted
from ignite_ipu.program.options import check_ipus, output_mode
from ignite_ipu.program.step import BatchStep
from ignite_ipu.program.tensors.classes import classes_of, put_classes, unwrap_tensors
from ignite_ipu.program.tensors.rows import row_count, select_rows
from ignite_ipu.session.events import IPUEvents
from ignite_ipu.session.placement import Placing
from ignite_ipu.session.weights.compiled_buffers import CompiledBuffers
from ignite_ipu.session.weights.tracker import Weights

__all__ = ["Program"]

# In the place of a random state that nobody knows any more.
_NO_STATE = [0]
_SEEDS = 2**31


class Program:
    """A module compiled for training or for evaluation, on first use.

    Args:
        step: The module.
        asked: The `poptorch.Options` that were asked for.
        wrap: Makes the executor from the module and the options.
        training: Whether the user's model is compiled in training mode.
        weights: Who holds the newest weights.
        fire: Called with what happens.
        placing: What puts the model on several IPUs; None for a model that is on one, or says so itself.
        link: The tie to the user's optimizer; None where nothing is trained.

    Attributes:
        executor: The PopTorch executor, None before first use.
        rows: Samples in one call, None before first use.
        geometry: The arithmetic of one call, None before first use.
        mode: Name of the output mode, as PopTorch resolves it.
        device_iterations: Of the options; weight updates in one call of a training program.
        micro_batches: Micro-batches that one call's inputs hold.
        micro_batches_per_replica: Forward passes of one replica in one call.
        copying: Makes the copies from the device that happen here, and makes good the ones that fail.
        constants: What the program has of buffers as constants, None before it was compiled.
        drawn: What messages call that which forward has drawn from, or taken from an iterator, in the trace.
        on_trace: Called with this program, a batch's leaves, and the Python values that forward changed in its trace.
    """

    def __init__(
        self,
        step: BatchStep,
        asked: Any,
        wrap: Callable[[nn.Module, Any], Any],
        training: bool,
        weights: Weights,
        fire: Callable[[IPUEvents], None],
        placing: Optional[Placing] = None,
        link: Optional[OptimizerLink] = None,
    ) -> None:
        self.step = step
        self.asked = asked
        self.training = training
        self.placing = placing
        self.executor: Optional[Any] = None
        self.rows: Optional[int] = None
        self.geometry: Optional[BatchGeometry] = None
        self.random_state: Optional[List[int]] = None
        self.mode: str = output_mode(asked, training).name
        self.device_iterations: int = asked.device_iterations
        self.micro_batches_per_replica: int = self.device_iterations * asked.Training.gradient_accumulation
        self.micro_batches = BatchGeometry.from_options(asked, 1).input_micro_batches
        self.copying: Callable[[Callable[[], Any]], Any] = _make
        self.on_trace: Callable[[Program, Sequence[Any], List[str]], None] = _nobody
        self.constants: Optional[CompiledBuffers] = None
        self.drawn: List[str] = []
        self._python: Optional[PythonState] = None
        self._modes: List[bool] = []
        self._traced: List[Hashable] = []
        self._changed_by_trace: List[str] = []
        self._classes: List[type] = []
        self._wrap = wrap
        self._weights = weights
        self._fire = fire
        self._link = link
        self._step_class = type(step)

    @property
    def options(self) -> Any:
        """The options: once the module is wrapped, PopTorch's own copy, with which it is compiled."""
        return self.asked if self.executor is None else self.executor.options

    @property
    def compiled(self) -> bool:
        """Whether there is a compiled program."""
        return self.executor is not None and bool(self.executor.isCompiled())

    @property
    def ready(self) -> bool:
        """Whether the program is compiled and on its IPUs."""
        return self.executor is not None and bool(self.executor.isAttachedToDevice())

    @property
    def ipus(self) -> Optional[int]:
        """How many IPUs all replicas take, None while "auto" has not planned them."""
        return check_ipus(self.options) if self.placing is None else self.placing.ipus

    def rows_for(self, samples: int) -> int:
        """Return the rows of one call: before first use those of all these samples, filled up."""
        return self.rows or -(-samples // self.micro_batches) * self.micro_batches

    def returned_rows(self, batch: Any) -> Any:
        """Return those rows of inputs and targets to which the outputs belong that come back."""
        geometry = self.geometry
        assert geometry is not None and self.rows is not None
        return select_rows(batch, geometry.row_index(self.mode, self.options.output_return_period), self.rows)

    def mean_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the mean over the micro-batches whose losses came back."""
        mean = loss.mean() if loss.dim() else loss
        # A sum is over the micro-batches of one replica.
        return mean / self.micro_batches_per_replica if self.mode == "Sum" else mean

    def arguments(self, *parts: Any) -> List[Any]:
        """Return what to call the program with for one batch."""
        return self.step.arguments(*parts, micro_batches=self.micro_batches)

    def set_modes(self) -> None:
        """Put the user's model in training or evaluation mode, as native steps do in every iteration.

        Where no module has another mode than the last time, that is found out without calling any of the model's code.
        """
        python = self._python
        if python is not None and python.training() == self._modes:
            return
        self.step.train(self.training)
        if python is not None:
            self._modes = python.training()

    def changed_values(self) -> List[str]:
        """Return the names of Python values that were others when the program was traced; modules and hooks, too."""
        attributes = self._python
        if attributes is None:
            return []
        if not attributes.complete:
            parts, only_read_more = attributes.parts, attributes.has_its_places
            before = dict(zip(attributes.names, self._traced))
            attributes = self._python = self.step.python_state(self.training)
            if attributes.parts != parts:
                return ["modules or hooks"]
            attributes.leave_out(self._changed_by_trace)
            # What another program was seen to read did not count in this one's trace.
            now = attributes.values() if only_read_more else [None] * len(attributes.names)
            self._traced = [before.get(name, value) for name, value in zip(attributes.names, now)]
        now = attributes.values()
        return [] if now is self._traced or now == self._traced else attributes.changed(self._traced)

    def read_random_state(self) -> Optional[List[int]]:
        """Return the random state; None before the program was compiled, or if it has no seed and never ran."""
        if not self.compiled:
            return self.random_state

        def read() -> Optional[List[int]]:
            assert self.executor is not None
            state: Optional[List[int]] = self.executor.rng_state
            return None if state is None else list(state)

        known: Optional[List[int]] = self.copying(read)
        return known

    def start_random_stream(self) -> None:
        """Give the random stream a start that can be gone back to, if it has not started and PopTorch tells of none."""
        if self.read_random_state() is not None:
            return
        seeded = self.options.exists("random_seed")
        start = [int(self.options.random_seed) if seeded else torch.initial_seed() % _SEEDS]
        if self.compiled:
            assert self.executor is not None
            self.executor.rng_state = start
        else:
            self.random_state = start

    def load(self, leaves: Sequence[Any], batch: Any) -> None:
        """Bring the program to its IPUs, compiled for this batch if it has not been compiled yet.

        Raises:
            Exception: Whatever PopTorch refuses to compile; the next batch may try again.
        """
        if self.executor is None:
            if self.training:
                self._weights.unwatch()
            self.executor = self._wrap(self.step, self._placed_options(leaves))
            self._weights.add(self.executor, self.training)
        if not self.executor.isCompiled():
            self._compile(leaves)
            self.rows = row_count(batch)
            self.geometry = BatchGeometry.from_options(self.options, self.rows // self.micro_batches)
        self._fire(IPUEvents.DEVICE_ATTACHING)
        if not self.executor.isAttachedToDevice():
            self.executor.attachToDevice()
        self._weights.loaded(self.executor)
        self._fire(IPUEvents.DEVICE_ATTACHED)
        if self.random_state is not None:
            self.executor.rng_state = self.random_state
            self.random_state = None

    def detach(self) -> None:
        """Give the IPUs back and keep the compiled program; what only the device knew is saved on the host."""
        if self.ready:
            assert self.executor is not None
            self.executor.detachFromDevice()
            self._fire(IPUEvents.DEVICE_DETACHED)

    def abandon(self) -> None:
        """Let go of IPUs whose memory is lost, without a thought for what was on them; `load` takes IPUs again."""
        executor = self.executor
        if executor is None:
            return
        # PopTorch reads before it gives IPUs back, and keeps them when that fails, unless there is nothing to be read.
        if self.ready and self._link is not None:
            self._link.give_up()
            with contextlib.suppress(Exception):
                executor.copyWeightsToDevice()
        if self.ready:
            with contextlib.suppress(Exception):
                executor.detachFromDevice()
        if self.ready:
            with contextlib.suppress(Exception):
                executor.rng_state = self.random_state or _NO_STATE
            with contextlib.suppress(Exception):
                executor.detachFromDevice()
        if self.ready:
            self._drop(executor)
        self._fire(IPUEvents.DEVICE_DETACHED)

    def _drop(self, executor: Any) -> None:
        """Let go of an executor that keeps its IPUs whatever is asked of it: they are free when nobody has it."""
        for ask in (executor.destroy, lambda: self._link and executor.setOptimizer(self._link.stand_in())):
            with contextlib.suppress(Exception):
                ask()
        self._weights.remove(executor)
        self.executor = self._python = self.constants = None
        unwrap_tensors(self.step)
        self.step.__class__ = self._step_class
        self.step.forget_layout()

    def destroy(self) -> None:
        """Give everything back; the next use compiles again."""
        if self.executor is None or not self.executor.isCompiled():
            return  # PopTorch cannot undo a wrapping that was never compiled: it is kept for the next try
        attached = self.ready
        state = self.read_random_state() if attached else self.random_state
        self.executor.destroy()
        self.random_state = state
        self._weights.remove(self.executor)
        self.executor = self._python = self.constants = None
        self.step.forget_layout()
        if attached:
            self._fire(IPUEvents.DEVICE_DETACHED)

    def outgrow(self) -> None:
        """Give everything back; the next use compiles for a batch of another size."""
        self.destroy()
        self.rows = None

    def succeeded_by(self, step: BatchStep, options: Any) -> Program:
        """Give everything back and return a program for another module, which goes on where this one ends."""
        self.destroy()
        self.unwrap()
        return self.like(step, options)

    def unwrap(self) -> None:
        """Undo a wrapping that was never compiled, which PopTorch does not undo."""
        if self.executor is not None:
            self._weights.remove(self.executor)
            self.executor = None
            unwrap_tensors(self.step)

    def like(self, step: BatchStep, options: Any) -> Program:
        """Return a program for another module, which goes on where this one is."""
        successor = Program(
            step, options, self._wrap, self.training, self._weights, self._fire, self.placing, self._link
        )
        successor.random_state = self.random_state
        successor.copying = self.copying
        successor.on_trace = self.on_trace
        return successor

    def set_aside(self) -> None:
        """Give the IPUs back and keep the compiled training program, while another one trains the same weights."""
        executor = self.executor
        assert executor is not None and self._link is not None
        self._weights.to_host()
        self.detach()
        self.random_state = self.read_random_state()
        executor.setOptimizer(self._link.stand_in())
        self._weights.remove(executor)
        self._classes = classes_of(self.step)
        unwrap_tensors(self.step)

    def take_back(self, random_state: Optional[List[int]]) -> None:
        """Train with this program again, after `set_aside`; it comes to its IPUs when it is loaded.

        Args:
            random_state: Where to continue the random stream.
        """
        self.random_state = random_state
        if self.executor is not None and self._link is not None:
            put_classes(self.step, self._classes)
            self.executor.setOptimizer(self._link.conversion.optimizer)
            self._weights.add(self.executor, self.training)

    def _placed_options(self, leaves: Sequence[Any]) -> Any:
        if self.placing is None:
            return self.asked
        try:
            self.placing.prepare(leaves)
        except BaseException:
            self.step.forget_layout()
            raise
        return self.placing.configured(self.asked)

    def _compile(self, leaves: Sequence[Any]) -> None:
        assert self.executor is not None
        self._weights.to_host()
        self._fire(IPUEvents.COMPILE_STARTED)
        # The flags of the user's model are read while it is traced, and wrapping does not set them.
        self.step.train(self.training)
        attributes = self.step.python_state()
        before, kept, draws = attributes.values(), ModuleAttributes(self.step), Draws()
        try:
            placed = contextlib.nullcontext() if self.placing is None else self.placing.applied()
            reads = reads_noted(self.step.model, self.training, attributes.roots(), draws)
            with placed, self.step.noting(draws), reads:
                self.executor.compile(*leaves)
        except BaseException:
            kept.put_back()
            self.step.forget_layout()
            raise
        changed, self.drawn = attributes.changed(before), draws.names()
        kept.put_back()
        if draws.asked_outside and not changed and not self.drawn:
            self.drawn = self.step.changed_in_a_call(leaves, self.micro_batches)
        if changed or self.drawn:
            self.on_trace(self, leaves, [*changed, *self.drawn])
        # Each trace of the model, another program's too, would change them again.
        self._changed_by_trace = changed
        self._python = self.step.python_state(self.training)
        self._python.leave_out(changed)
        self._traced = self._python.values()
        self.constants = CompiledBuffers(self.step, self.training, self._weights)
        self._fire(IPUEvents.COMPILE_COMPLETED)


def _nobody(program: Program, leaves: Sequence[Any], changed: List[str]) -> None:
    pass


def _make(copy: Callable[[], Any]) -> Any:
    return copy()
