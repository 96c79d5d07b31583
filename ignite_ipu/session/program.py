"""`ModelProgram`: a module that is compiled on first use."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple, TypeVar

import torch
from torch import nn

from ignite_ipu import backend
from ignite_ipu.errors import IPUError, OptionsError, SessionError, listed, logger
from ignite_ipu.optimizers.conversion import Conversion
from ignite_ipu.optimizers.host_link import HostLink, Link
from ignite_ipu.optimizers.link import OptimizerLink
from ignite_ipu.poptorch_types import Executor, Options
from ignite_ipu.program.forward.module_attributes import ModuleAttributes
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.guards.retrace import Retrace
from ignite_ipu.program.micro_batches import sample_count, select
from ignite_ipu.program.options import check_ipus, misspelt_settings_named, output_mode
from ignite_ipu.program.step import BatchStep
from ignite_ipu.program.tensors.raw import (
    classes_of,
    named_tensors,
    plain,
    put_classes,
    requires_grad,
    unwrap_tensors,
)
from ignite_ipu.session.anchored_gradients import AnchoredGradients
from ignite_ipu.session.compiled_program import CompiledProgram
from ignite_ipu.session.executables import ExportedProgram, PathLike, export
from ignite_ipu.session.hooks import IPUEvents, SessionHooks
from ignite_ipu.session.host_counters import counter_warnings_aside
from ignite_ipu.session.host_gradients import are_finite
from ignite_ipu.session.twin import TwinExecutor, Twins
from ignite_ipu.session.weights.tracker import Counted, Weights, counted_by_norms
from ignite_ipu.torch_names.modules import BUFFERS, NormWithStatistics
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

if TYPE_CHECKING:
    from ignite_ipu.pipeline import PipelineRequest
    from ignite_ipu.session.placement import Placing

# In the place of a lost random state.
_NO_STATE = [0]
_SEEDS = 2**31
_T = TypeVar("_T")
_AVERAGED = (
    "The loss is a sum over samples, and an update averages the gradients of its %s = %d micro-batches, as Ignite's "
    "trainer does over its accumulation steps: it is 1/%d of the update by the sum over all its samples. For that one, "
    "pass options with Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)."
)


class ModelProgram:
    """A module compiled for training or for evaluation on first use, with the options that were `asked` for.

    Args:
        placing: The placement on several IPUs; None for a model on one IPU, or with its own annotations.
        link: The tie to the user's optimizer; None where nothing is trained. With a `HostLink` the program brings
            gradients back and leaves the weights as they are, so that those of the host are the newest.
        on_trace: Called with this program once it is traced, and may refuse it.

    Attributes:
        traced: The program in its executor, until it is destroyed; `compiled` asks PopTorch whether it is there.
        geometry: The arithmetic of one call, None before first use.
        mode: Name of the output mode, as PopTorch resolves it.
        calls: The arithmetic of a call with micro-batches of one sample.
        micro_batches: Micro-batches that one call's inputs hold.
        micro_batches_per_replica: Forward passes of one replica in one call.
        changed: Reasons for another compilation, in words; empty if only the user requested it.
        shapes: Sizes and strides of the tensors that forward returns on the host, where it can be called there.
        varying: Names of values that every call of forward on the host changes, or finds changed.
        trained_names: Names of the parameters that it trained when it was set aside.
        taking_gradients: Whether buffers of the last call are on their way to the host, with a `HostLink`.
        gradients: The gradients that it brings back with every call, None for none; settled before the first call.
    """

    def __init__(
        self,
        step: BatchStep,
        asked: Options,
        weights: Weights,
        hooks: SessionHooks,
        placing: Optional[Placing] = None,
        link: Optional[Link] = None,
        on_trace: Optional[Callable[[ModelProgram], None]] = None,
    ) -> None:
        self.step = step
        self.asked = asked
        self.placing = placing
        self.training = link is not None
        if link is not None:
            step.set_direction(isinstance(link.conversion, Conversion) and link.conversion.maximizes)
        self._host_link = link if isinstance(link, HostLink) else None
        self._updates = self.training and self._host_link is None
        # PopTorch lets replicas write buffers of their own, or none.
        shared = asked.broadcast_buffers and asked.input_group_size < asked.replication_factor
        self._own_statistics = self.training and shared and step.tracks_statistics()
        if self._own_statistics:
            asked.broadcastBuffers(False)
        self.geometry: Optional[BatchGeometry] = None
        self.mode: str = output_mode(asked, self.training).name
        self.calls = BatchGeometry.from_options(asked, 1)
        self.device_iterations = asked.device_iterations
        self.micro_batches_per_replica = self.device_iterations * asked.Training.gradient_accumulation
        self.micro_batches = self.calls.input_micro_batches
        self.shapes: List[Tuple[Tuple[int, ...], Tuple[int, ...]]] = []
        self.varying: List[str] = []
        self.changed: List[str] = []
        self.trained_names: Sequence[str] = ()
        self.gradients: Optional[AnchoredGradients] = None if self._host_link is None else AnchoredGradients()
        self.executor: Optional[Executor] = None  # without a program in it after a compilation that failed
        self.traced: Optional[CompiledProgram] = None
        self._file: Optional[ExportedProgram] = None
        self._random_state: Optional[List[int]] = None
        self._classes: List[type] = []
        self._counted: Counted = []
        self._written: Sequence[str] = ()
        self._writes: List[Sequence[str]] = []  # empty until they are known
        # With a `HostLink`: whether a call writes buffers, whether the gradients of the last one were looked at for
        # values that are not finite, and whether they are from now on.
        self._writes_buffers, self._unchecked, self._checks = True, False, False
        self.taking_gradients = False
        self._attributes_of = (-1, -1)  # the weights that attributes were computed from last
        self._weights, self._hooks, self._link, self._on_trace = weights, hooks, link, on_trace
        self._step_class, self._layouts = type(step), step.layouts

    @property
    def options(self) -> Options:
        """The options: once the module is wrapped, PopTorch's own copy, with which it is compiled."""
        return self.asked if self.executor is None else self.executor.options

    @property
    def compiled(self) -> Optional[CompiledProgram]:
        compiled = self.traced
        return compiled if compiled is not None and compiled.executor.isCompiled() else None

    @property
    def ready(self) -> bool:
        """True if the program is compiled and on its IPUs."""
        return self.executor is not None and self.executor.isAttachedToDevice()

    @property
    def rows(self) -> Optional[int]:
        """Samples in one call, None before first use."""
        return None if self.geometry is None else self.geometry.global_batch_size

    @property
    def ipus(self) -> Optional[int]:
        """IPUs that all replicas take, None while "auto" has not planned them."""
        return check_ipus(self.options) if self.placing is None else self.placing.ipus

    def evaluates(self, step: BatchStep, options: Options, pipeline: Optional[PipelineRequest]) -> bool:
        """Return whether this is the program for a module, with the same options object and placement."""
        asked = None if self.placing is None else self.placing.request
        return asked == pipeline and self.asked is options and self.step.computes_like(step)

    def returned(self, batch: Any) -> Any:
        """Return those micro-batches of inputs and targets to which the outputs belong that come back."""
        positions = self.returned_positions
        return batch if positions is None else select(batch, positions, self.micro_batches)

    @functools.cached_property
    def returned_positions(self) -> Optional[List[int]]:
        """Positions of the micro-batches whose outputs come back, None for all in order."""
        positions = self.calls.returned_micro_batches(self.mode, self.asked.output_return_period)
        return None if positions == list(range(self.micro_batches)) else positions

    def mean_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the mean over the micro-batches whose losses came back."""
        mean = loss.mean() if loss.dim() else loss
        mean = -mean if self.step.maximizes else mean
        # A sum is over the micro-batches of one replica.
        return mean / self.micro_batches_per_replica if self.mode == "Sum" else mean

    def read_gradients(self) -> Dict[str, torch.Tensor]:
        """Return the gradients of the last update by the names of the parameters in the module that is compiled."""
        assert self.executor is not None and self.gradients is not None and self._link is not None
        found = self.gradients.read(self.executor, float(self._link.settings.loss_scaling))
        if self.step.maximizes:
            found = [-gradient for gradient in found]
        return dict(zip(self.gradients.names, found))

    def take_gradients(self) -> List[torch.Tensor]:
        """Return the gradients of a call, for the parameters of `gradients`; to be called once after each call.

        For programs with a `HostLink`. Buffers that the call has written come to the host.
        """
        assert self.executor is not None and self.gradients is not None and self._host_link is not None
        weights, loss_scaling = self._weights, float(self._host_link.settings.loss_scaling)
        gradients = self.gradients.read(self.executor, loss_scaling)
        looks = self._writes_buffers or self._checks
        finite = are_finite(gradients) if looks else True
        if self._writes_buffers:
            self.taking_gradients = True
            self._copied(lambda executor: executor.fetch_buffers(finite))  # type: ignore[attr-defined]
            self.taking_gradients = False
        self._unchecked = not looks
        weights.called(self.executor, writes_buffers=self._writes_buffers, spoils=not finite)
        return gradients

    def host_update_bytes(self) -> Tuple[int, int]:
        """Return how many bytes of gradients and of weights an update on the host copies.

        Each micro-batch and replica has gradients of its own. Buffers that a call writes come with all weights.
        """
        with DisableTorchFunctionSubclass():
            tensors = {id(each): each for each in named_tensors(self.step).values()}.values()
            gradients = sum(each.numel() * each.element_size() for each in tensors if requires_grad(each))
            weights = sum(each.numel() * each.element_size() for each in tensors if each.is_floating_point())
        return gradients * self.calls.micro_batches, weights

    def host_update_cost(self) -> str:
        """Return in words the copies of an update on the host."""
        gradients, weights = self.host_update_bytes()
        buffers = ", and the weights with the buffers that a call writes" if self._writes_buffers else ""
        return (
            f"each backward pass copies {gradients / 1e6:,.3g} MB of gradients to the host{buffers}, and each update "
            f"{weights / 1e6:,.3g} MB of weights to the device"
        )

    def refresh(self) -> None:
        """Upload the weights of the host before a call, if they are others, or the device's may be spoilt."""
        assert self.executor is not None
        if self._unchecked and not self._weights.is_stale(self.executor):
            # A gradient that is not finite has made the device's weights NaN.
            self._checks = True
            self._weights.spoil(self.executor)
        self._unchecked = False
        self._weights.to_inference(self.executor)

    def arguments(self, *parts: Any) -> List[Any]:
        return self.step.arguments(*parts, micro_batches=self.micro_batches)

    def set_modes(self) -> None:
        """Put the user's model in training or evaluation mode, as native steps do in every iteration."""
        if self.traced is None:
            self.step.train(self.training)
        else:
            self.traced.set_modes()

    def known_leaves(self, *parts: Any) -> Optional[List[Any]]:
        """Return the result of `arguments` for tensors like those that it was compiled for; None for all others."""
        return self._layouts[0].leaves_of(parts) if self._layouts else None

    def note_call(self) -> None:
        if self.traced is not None:
            self.traced.retrace.note_call()

    def writes(self, *parts: Any) -> Sequence[str]:
        """Return the names of the buffers that a call for a batch writes, by a call on the host if they are unknown."""
        if not self._writes:
            step = self.step.again()
            layout, leaves = step.flattened(parts, 1)
            step.settle(layout)
            self._find_writes(step, leaves, 1)
        return self._writes[0]

    def _find_attributes(self, leaves: Sequence[Any]) -> None:
        """Have attributes kept that forward computes from weights alone; of layers on several IPUs they are not."""
        if self.placing is not None or not self.step.find_attributes(leaves, self.micro_batches, self.training):
            return
        if self.training:
            self._weights.include(self.step)
            asked = self.asked
            self._own_statistics |= asked.broadcast_buffers and asked.input_group_size < asked.replication_factor

    def show_attributes(self, leaves: Sequence[Any]) -> None:
        """Set attributes that forward computes from weights alone to their values after a call."""
        if not self.step.computed.places:
            return
        if self.training:
            self.step.computed.show()
            return
        weights = self._weights.updates[0], self._weights.edits
        if weights != self._attributes_of:
            self._attributes_of = weights
            self.step.compute_attributes(leaves, self.micro_batches)

    def _find_writes(self, step: BatchStep, leaves: Sequence[Any], micro_batches: int) -> Sequence[str]:
        kept = ModuleAttributes(step.model)
        self._writes[:] = [step.find_writes(leaves, micro_batches)]
        kept.put_back(always=True)
        return self._writes[0]

    def take_writes(self, outputs: Any) -> Any:
        """Return the output of an inference call, after copying the written buffers to PyTorch's."""
        names = self.step.writes
        if names:
            outputs, *written = outputs
            buffers = named_tensors(self.step.model, BUFFERS)
            values = [(buffers[name], value[-1]) for name, value in zip(names, written)]
            self._weights.put_written(self.executor, values)
        for counter, count in self._counted:
            if count:
                plain(counter).numpy()[...] += count * self.micro_batches  # which PyTorch takes for no edit
        return outputs

    def read_random_state(self) -> Optional[List[int]]:
        """Return the random state; None before the program was compiled, or if it has no seed and never ran."""
        if self.compiled is None:
            return self._random_state
        state = self._copied(lambda executor: executor.rng_state)
        return None if state is None else list(state)

    def set_random_state(self, state: List[int]) -> None:
        """Continue a random stream with the next call."""
        compiled = self.compiled
        if compiled is None:
            self._random_state = list(state)
        else:
            compiled.executor.rng_state = list(state)

    def start_random_stream(self) -> None:
        """Give the random stream a start that can be restored, if it has not started and PopTorch reports none."""
        if self.read_random_state() is None:
            seeded = self.options.exists("random_seed")
            self.set_random_state([int(self.options.random_seed) if seeded else torch.initial_seed() % _SEEDS])

    def place(self, *parts: Any) -> None:
        """Plan or estimate with a batch, unless that was done when the program was compiled; see `Placing`."""
        if self.placing is not None and self.executor is None:
            step = self.step.again()
            self.placing.prepare(step, step.arguments(*parts, micro_batches=self.micro_batches))

    def load(self, leaves: Sequence[Any], batch: Any) -> Executor:
        """Bring the program to its IPUs, compiled for this batch if it is not yet, and return the executor.

        With an offline target (`options.useOfflineIpuTarget()`) it has none, and is compiled alone. After a compilation
        that PopTorch refuses, the next batch may try again.
        """
        executor = self.executor
        if executor is None:
            if self._updates:
                self._weights.unwatch()
            self._find_attributes(leaves)
            options = self._placed_options(leaves)
            if self.gradients is not None:
                options = self.gradients.configured(options, self.step, leaves, self.micro_batches)
            if self._own_statistics and options.broadcast_buffers:
                options = options.clone()
                options.broadcastBuffers(False)
            executor = self.executor = self._wrap(options)
            self._weights.add(executor, self._updates)
        if not executor.isCompiled():
            self._compile(executor, leaves)
            self.geometry = self._geometry_of(batch)
        if self.training:
            self._weights.counters.follow(self._counted, self.micro_batches_per_replica)
        if executor.options.connection_type == backend.poptorch().ConnectionType.Never:
            return executor  # compiled for IPUs that are elsewhere
        self._hooks.fire(IPUEvents.DEVICE_ATTACHING)
        if not executor.isAttachedToDevice():
            executor.attachToDevice()
        self._weights.loaded(executor)
        self._hooks.fire(IPUEvents.DEVICE_ATTACHED)
        if self._random_state is not None:
            executor.rng_state, self._random_state = self._random_state, None
        return executor

    def export(self, path: PathLike) -> None:
        """Write the compiled program to a file; see `ExportedProgram`."""
        compiled = self.compiled
        if compiled is None:
            raise SessionError("There is no compiled program to export: compile it for a batch first.")
        export(path, compiled.executor, self.step, self._link, compiled.retrace.fingerprint())

    def take(self, executable: ExportedProgram) -> None:
        """Load an executable in the place of the next compilation."""
        if self.compiled is not None:
            raise SessionError(
                f"{executable.path} comes too late: the program is compiled already. Load it before the first batch, "
                "or call trainer.ipu.release() first."
            )
        self._file = executable

    def detach(self) -> None:
        """Release the IPUs and keep the compiled program; state of the device is saved on the host."""
        if self.ready:
            self._copied(lambda executor: executor.detachFromDevice())
            self._hooks.fire(IPUEvents.DEVICE_DETACHED)

    def _copied(self, action: Callable[[Executor], _T]) -> Optional[_T]:
        """Return a function that copies from the executor's IPUs, with retries: then there may be another executor."""

        def copy() -> Optional[_T]:
            return None if self.executor is None else action(self.executor)

        return self._hooks.copy(copy) if self.training else copy()

    def abandon(self, random_state: Optional[List[int]] = None) -> None:
        """Release IPUs whose memory is lost, without reading them; `load` takes IPUs again.

        The random stream goes on from a state, where one is known.
        """
        executor = self.executor
        if executor is not None:
            # PopTorch reads before it gives IPUs back, and keeps them when that fails, unless nothing is to be read.
            if self.ready and self._link is not None:
                self._link.give_up()
                with contextlib.suppress(Exception):
                    executor.copyWeightsToDevice()
            if self.ready:
                with contextlib.suppress(Exception):
                    executor.detachFromDevice()
            if self.ready:
                with contextlib.suppress(Exception):
                    executor.rng_state = self._random_state or _NO_STATE
                with contextlib.suppress(Exception):
                    executor.detachFromDevice()
            if self.ready:
                self._drop(executor)
            self._hooks.fire(IPUEvents.DEVICE_DETACHED)
        self._random_state = random_state or self._random_state

    def _drop(self, executor: Executor) -> None:
        """Drop an executor that does not release its IPUs: they are free when it is garbage-collected."""
        with contextlib.suppress(Exception):
            executor.destroy()
        self._weights.counters.forget()
        if self._link is not None:
            with contextlib.suppress(Exception):
                executor.setOptimizer(self._link.stand_in())
        self._forget(executor)
        self._unwrap()
        self.step.__class__ = self._step_class

    def _forget(self, executor: Executor) -> None:
        self._weights.remove(executor)
        self.executor = self.traced = None
        self.step.forget_layout()

    def destroy(self) -> None:
        """Give everything back; the next use compiles again."""
        if self.executor is None or not self.executor.isCompiled():
            return  # PopTorch cannot undo a wrapping that was never compiled: it is kept for the next try
        attached = self.ready
        state = self.read_random_state() if attached else self._random_state
        self._copied(lambda executor: executor.destroy())
        if self.training:
            self._weights.counters.advance()
        self._random_state = state
        if self.executor is not None:
            self._forget(self.executor)
        if attached:
            self._hooks.fire(IPUEvents.DEVICE_DETACHED)

    def end(self) -> None:
        """Give everything back, and undo a wrapping that was never compiled, which PopTorch does not undo."""
        self.destroy()
        if self.executor is not None:
            self._forget(self.executor)
            self._unwrap()

    def _unwrap(self) -> None:
        if self._host_link is None:  # else twins were wrapped
            unwrap_tensors(self.step)

    def like(self, step: BatchStep, options: Options) -> ModelProgram:
        """Return a program for another module, which goes on where this one is."""
        placing = self.placing
        if placing is not None and options is not self.asked:
            placing = placing.again(step, options)
        successor = ModelProgram(step, options, self._weights, self._hooks, placing, self._link, self._on_trace)
        successor._random_state = self._random_state
        successor.gradients = None if self.gradients is None else self.gradients.again()
        return successor

    def set_aside(self, compiled: CompiledProgram, link: Link) -> None:
        """Give the IPUs back and keep the compiled training program, while another one trains the same weights."""
        self._weights.to_host()
        self.detach()
        self._random_state = self.read_random_state()
        compiled.executor.setOptimizer(link.stand_in())
        self.wait()

    def take_back(self, other: ModelProgram) -> None:
        """Train with this program again, after `set_aside`, and go on where another's random stream is."""
        self._random_state = other._random_state
        if self.executor is not None and isinstance(self._link, OptimizerLink):
            self.executor.setOptimizer(self._link.conversion.optimizer)
        self.go_on()

    def wait(self) -> None:
        """Keep the compiled training program and its IPUs, while another optimizer's trains the same weights."""
        self._weights.to_host()
        if self.executor is not None:
            self._weights.remove(self.executor)
            if self._updates:
                self._classes = classes_of(self.step)
                unwrap_tensors(self.step)

    def go_on(self) -> None:
        """Train with this program again, after `wait`, and with the weights at that time."""
        if self.executor is not None:
            if self._updates:
                put_classes(self.step, self._classes)
            self._weights.add(self.executor, self._updates, stale=True)
            self._weights.counters.follow(self._counted, self.micro_batches_per_replica)

    def _wrap(self, options: Options) -> Executor:
        poptorch, link = backend.poptorch(), self._link
        if link is None:
            return poptorch.inferenceModel(self.step, options=options)
        if isinstance(link, HostLink):
            twins = Twins(self.step)
            optimizer = link.settings.device_optimizer(twins.trained)
            return TwinExecutor(twins, lambda: poptorch.trainingModel(self.step, options=options, optimizer=optimizer))
        return poptorch.trainingModel(self.step, options=options, optimizer=link.conversion.optimizer)

    def _geometry_of(self, batch: Any) -> BatchGeometry:
        samples = sample_count(batch if isinstance(batch, tuple) else (batch,))
        return dataclasses.replace(self.calls, micro_batch_size=samples // self.micro_batches or 1)

    def _placed_options(self, leaves: Sequence[Any]) -> Options:
        if self.placing is None:
            return self.asked
        try:
            self.placing.prepare(self.step, leaves)
        except BaseException:
            self.step.forget_layout()
            raise
        return self.placing.configured(self.asked)

    def _compile(self, executor: Executor, leaves: Sequence[Any]) -> None:
        self._weights.to_host()
        self._check_writes(leaves)
        self.step.show_buffers()
        self._hooks.fire(IPUEvents.COMPILE_STARTED)
        # The flags of the user's model are read while it is traced, and wrapping does not set them.
        self.step.train(self.training)
        attributes = self.step.python_state()
        before, kept = attributes.values(), ModuleAttributes(self.step)
        try:
            placed = contextlib.nullcontext() if self.placing is None else self.placing.applied(self.step)
            first = self._hooks.fired[IPUEvents.COMPILE_STARTED] == 1
            with placed, misspelt_settings_named(), counter_warnings_aside(self.step, first):
                if self._file is None:
                    executor.compile(*leaves)
                else:
                    self._file.give_to(executor, self.step, self._link)
        except BaseException:
            kept.put_back()
            self.step.forget_layout()
            raise
        changed = attributes.changed(before)
        kept.put_back(kept=self.step.computed.names(self.step))
        retrace = Retrace(self.step.call_on_host(leaves, self.micro_batches), self.step.python_state)
        # Imports of the trace, for example, were absent before.
        python, kept = self.step.python_state(), ModuleAttributes(self.step)
        self._counted = counted_by_norms(self.step)
        try:
            self.varying = retrace.begin(python, self.step.is_tried, self.step.leaves_behind)
            self._counted, self._written = self.step.counted, self.step.written
            self.shapes = self.step.shapes
            writes = self._written or self.step.computed.places
            self._writes_buffers = bool(writes) or _updates_statistics(self.step)
            if self.training:
                self._say_if_sums_are_averaged(leaves)
        except SessionError:
            kept.put_back(always=True)
            raise
        except Exception as error:
            logger.info("%s cannot be called on the host: %s", type(self.step.model).__qualname__, error)
        kept.put_back(always=True)
        if self._on_trace is not None:
            try:
                self._on_trace(self)
            except IPUError:
                self.destroy()
                raise
        if self._own_statistics:
            self._check_own_statistics()
        self._check_reads()
        python = python if python.complete else self.step.python_state()
        self.traced = CompiledProgram(executor, self.step, self.training, self._weights, python, changed, retrace)
        if self._file is not None:
            try:
                self._file.check(retrace.fingerprint())
            except SessionError:
                self.destroy()
                raise
            self._file = None
        self.changed = []
        self._hooks.fire(IPUEvents.COMPILE_COMPLETED)

    def _check_writes(self, leaves: Sequence[Any]) -> None:
        """Refuse buffers that forward writes in inference, where their values of the last micro-batch cannot return."""
        names = self._find_writes(self.step, leaves, self.micro_batches)
        if not names:
            return
        if self.options.replication_factor > 1:
            raise OptionsError(
                f"The model writes {listed(names)} in evaluation, and each of its {self.options.replication_factor} "
                "replicas (replicationFactor) would write a copy of its own. Evaluate with replication_factor=1."
            )
        if self.mode == "Sum" and self.device_iterations > 1:
            raise OptionsError(
                f"The model writes {listed(names)} in evaluation, and the output mode Sum would add its values of "
                f"{self.device_iterations} micro-batches (deviceIterations) up. Evaluate with device_iterations=1, or "
                "with another output mode."
            )

    def _check_reads(self) -> None:
        """Refuse a forward whose code reads a buffer that it writes: the program has the value of the trace."""
        read = self.step.read_buffers.intersection([*self._written, *self.step.writes])
        if read:
            self.destroy()
            raise SessionError(
                f"The code of the model reads the value of the buffer {listed(sorted(read))}, which forward writes. A "
                "compiled program has the value that it was traced with. Make the choice in tensors (torch.where), or "
                "write the buffer outside of forward."
            )

    def _check_own_statistics(self) -> None:
        replicas, written = self.options.replication_factor, self._written
        if written:
            self.destroy()
            raise OptionsError(
                f"The model writes {listed(written)}, and its {replicas} replicas (replicationFactor) would each have "
                "their own values, of which those of the first one come back. If that is acceptable, pass options with "
                "broadcastBuffers(False); it is set by itself for the statistics of normalisations alone."
            )
        logger.info(
            "Each of the %d replicas has normalisation statistics of its own (broadcastBuffers(False)); those of the "
            "first come back, as from DistributedDataParallel.",
            replicas,
        )

    def _say_if_sums_are_averaged(self, leaves: Sequence[Any]) -> None:
        training, replicas = self.options.Training, self.options.replication_factor
        count = training.gradient_accumulation * replicas
        averaged = count > 1 and training.accumulation_and_replication_reduction_type.name == "Mean"
        if averaged and self.step.adds_up(leaves, self.micro_batches):
            factors = f"gradientAccumulation {training.gradient_accumulation} x replicationFactor {replicas}"
            logger.warning(_AVERAGED, factors, count, count)


def _updates_statistics(module: nn.Module) -> bool:
    norms = (each for each in module.modules() if isinstance(each, NormWithStatistics))
    return any(each.training and each.running_mean is not None for each in norms)
