"""A compiled program: the captured graph, where it is placed, and its state on the device while it is attached."""

from __future__ import annotations

import functools
import itertools
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.emulator.compiler import batching
from ignite_ipu.emulator.compiler.graph import Graph, dump, on_the_host
from ignite_ipu.emulator.compiler.inductor import Compiled
from ignite_ipu.emulator.compiler.inductor import compiled as torch_compiled
from ignite_ipu.emulator.compiler.inductor import wanted as torch_compile_wanted
from ignite_ipu.emulator.compiler.placement import BlockPlacement
from ignite_ipu.emulator.compiler.tracing import tensors_by_name, trace
from ignite_ipu.emulator.device.device import Meter, acquire
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.files import cache
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.popdist.communication import connected
from ignite_ipu.emulator.popdist.replicas import Replicas
from ignite_ipu.emulator.runtime.anchors import Anchors, update_tensors
from ignite_ipu.emulator.runtime.call_times import Times
from ignite_ipu.emulator.runtime.executable import Executable, RandomStream
from ignite_ipu.emulator.runtime.host_tensors import HostTensors, shares_memory
from ignite_ipu.emulator.runtime.inputs import Inputs
from ignite_ipu.emulator.runtime.optimizer_tracker import OptimizerTracker
from ignite_ipu.emulator.runtime.report import report_for
from ignite_ipu.emulator.runtime.results import Results
from ignite_ipu.emulator.runtime.training_step import CompiledStep, GradientStep, reducer, store_for
from ignite_ipu.emulator.runtime.weight_copies import WeightCopies, size_of
from ignite_ipu.emulator.trace import number_formats
from ignite_ipu.emulator.trace.active import IpuTensor
from ignite_ipu.emulator.trace.refusals import without_half_kernel
from ignite_ipu.emulator.values.arguments import Arguments
from ignite_ipu.emulator.values.replica_groups import ReplicaGroups, Setting
from ignite_ipu.emulator.values.structures import flatten_tensors
from ignite_ipu.emulator.values.wrapping import plain
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_SEEDS = itertools.count(42)


class DeviceProgram:
    """The result of compiling one model for one kind of arguments."""

    def __init__(
        self,
        model: nn.Module,
        arguments: Arguments,
        options: Options,
        training: bool,
        optimizer: Optional[OptimizerTracker],
        per_replica: Mapping[str, Setting],
        meter: Meter,
    ) -> None:
        self.arguments = arguments.frozen()
        self.batching = batching.from_options(options)
        self._options = options
        self._training = training
        # Name of the program in reports.
        kind = "training" if training else "inference"
        self._name = str(options("model_name")) if options.exists("model_name") else kind
        self._optimizer = optimizer
        self._meter = meter
        self.host = HostTensors(model)
        if optimizer is not None:
            optimizer.check_parameters(self.host.compiled)
        self._anchors = Anchors(options, training)
        self.placement = BlockPlacement(options._execution_strategy)
        compiled_in = None if optimizer is None else optimizer.description.compiled_in
        entry = cache.lookup(options, training, compiled_in, self._name, meter)
        fold = None if entry is None else entry.fold
        try:
            self.graph, self.capture = trace(
                model,
                arguments,
                self.batching,
                self.placement,
                options,
                training,
                per_replica,
                self._anchors.of_graph,
                fold,
            )
        finally:
            self.placement.close()
        self._check()
        self._copies = WeightCopies(self.host, self.graph, training, meter)
        if entry is not None:
            entry.store(self.graph)
        dump(self.graph)
        self.ipus = self.placement.ipus(options)
        self._groups = self._replica_groups(per_replica)
        self._reduce = reducer(options.Distributed.numProcesses) if training else None
        self._replicas = _together(options) if self.graph.between_replicas else None
        seed = options("random_seed") if options.exists("random_seed") else next(_SEEDS)
        self.random = RandomStream(int(seed), alike=not on_the_host(self.graph.nodes))
        self._inputs = Inputs(self.graph.inputs, options)
        self._results = Results(self.graph.positions, training)
        self.report = report_for(options, self._name)
        # Exceptions and stochastic rounding act on the result of each operator, which compiled code does not have.
        self._precision = self.capture.precision
        each_result = self._precision.floating_point_exceptions or self._precision.stochastic_rounding
        self._compiles_with_torch = torch_compile_wanted() and not (each_result or self.graph.between_replicas)
        self._compiled: Optional[Graph] = None
        self._compiled_step = Compiled(self._name)
        self._executable: Optional[Executable] = None
        self._step: Optional[GradientStep] = None
        # Micro-batches of a call, and those of which outputs are returned.
        self._sizes = self.batching.micro_batches, self.batching.returned
        self._give_back: Optional[Callable[[], object]] = None
        graph, positions = self.graph, self.graph.positions
        computes = any(place is not None for place in positions) or graph.extras
        self.needs_ipu = training or bool(computes or graph.written_inputs or graph.written_buffers)

    @property
    def attached(self) -> bool:
        """True while the program's IPUs are held and loaded; always, for a graph without work for an IPU."""
        return self._executable is not None or not self.needs_ipu

    def attach(self, owner: object) -> None:
        options = self._options
        ipu_id = options("ipu_id") if options.exists("ipu_id") else None
        if not options._uses_ipu_model():  # IPU models are unlimited in number
            self._give_back = acquire(self.ipus, owner, f"{type(owner).__name__} {self._name}", ipu_id)
        if self._compiles_with_torch and self._compiled is None and not self._training:
            self._compiled = torch_compiled(self.graph, self._name)
        weights, buffers = self._copies.host_values()
        self._executable = executable = Executable(
            self._compiled or self.graph,
            self.batching,
            weights,
            self._differentiable,
            buffers,
            self._groups,
            self.random,
            self._replicas,
        )
        self._meter.add(attaches=1)
        self._copies.count_upload(executable)
        if self._optimizer is not None:
            self._step = self._training_step(executable, self._optimizer)

    def detach(self) -> None:
        if self._executable is not None:
            self._meter.add(detaches=1)
        if self._give_back is not None:
            self._give_back()
        self._give_back = None
        self._executable = None
        self._step = None

    def to_device(self, given: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Return the inputs as the graph takes them: detached, narrowed from float64 and contiguous."""
        return self._inputs.to_device(given)

    def call(
        self, inputs: List[torch.Tensor], given: Sequence[torch.Tensor]
    ) -> Tuple[Any, Dict[str, torch.Tensor], Times]:
        """Run one call and return forward's results, the anchored tensors by short name, and the times of their copies.

        The `inputs` are on the device. Values that forward writes to them are copied to the tensors `given` by the
        caller.
        """
        graph, batching = self.graph, self.batching
        if self._executable is not None and not self._training and not self._copies.edits_reported:
            self._copies.report_stale_weights(self._executable)
        started = time.perf_counter()
        outputs = self._run(inputs)
        for place in graph.written_inputs:
            if inputs[place].data_ptr() != given[place].data_ptr():
                given[place].detach().copy_(inputs[place])
        seconds = time.perf_counter() - started
        anchored = self._anchors.values(outputs, graph.extras, self._executable, self._step)
        micro_batches, returned = self._sizes
        steps, returned = (0, 0) if self._inputs.synthetic else (micro_batches, returned)
        # Each device iteration of training updates the weights.
        self._meter.add_call(micro_batches, batching.device_iterations if self._training else 0)
        results = self._results.of(graph, outputs)
        return results, anchored, Times(len(graph.inputs), steps, len(outputs), returned, seconds)

    def _run(self, inputs: List[torch.Tensor]) -> List[torch.Tensor]:
        """Return everything that the graph returns, stacked."""
        executable = self._executable
        if executable is None:
            return []  # forward returns constants alone
        step, report, synthetic = self._step, self.report, self._inputs.synthetic
        run = executable.infer if step is None else step.train
        try:
            if torch.get_default_dtype() is self.capture.default_dtype and not synthetic and report is None:
                return run(inputs)
            with number_formats.by_default(self.capture.default_dtype):
                if synthetic:
                    with self.random.drawn():
                        inputs = list(map(synthetic, inputs))
                if report is None:
                    return run(inputs)
                with report.profiled(self, executable, step):
                    return run(inputs)
        except RuntimeError as error:
            explained = without_half_kernel(error)
            if explained is None:
                raise
            raise explained from error

    def upload(self) -> None:
        if self._executable is not None:
            self._copies.upload(self._executable)

    def upload_buffers(self, buffers: Mapping[str, torch.Tensor]) -> None:
        self._copies.upload_buffers(self._executable, buffers)

    def download(self) -> None:
        if self._executable is not None:
            self._copies.download(self._executable)

    def memory(self) -> Dict[str, int]:
        """Return the bytes that the device holds, by kind; empty while it is not attached."""
        executable = self._executable
        if executable is None:
            return {}
        return {
            "weights": size_of(executable.weights.values()),
            "buffers": size_of(buffer for own in executable.buffers for buffer in own.values()),
            "constants": size_of(self.graph.constants),
            "optimizer_state": 0 if self._step is None else self._step.optimizer.state_bytes,
        }

    def tensor_names(self) -> List[str]:
        """Return the names of the graph's tensors: parameters and buffers by those of the model."""
        return [*tensors_by_name(self.capture), *update_tensors(self._updated)]

    def _check(self) -> None:
        self.placement.check(self._options, self._training)
        self.placement.check_graph(self.capture.graph)
        returned = [leaf.node for leaf in flatten_tensors(self.graph.structure) if isinstance(leaf, IpuTensor)]
        for check in self.capture.checks:
            check(returned, self._options, self.placement)
        self._check_buffers()
        for name in self._options._Popart._value("updatableNamedBuffers", []):
            if name not in self.host.buffers:
                logger.warning(
                    "updatableNamedBuffers names %r, which is no buffer of the model: it is never updated. Its buffers "
                    "are %s.",
                    name,
                    list(self.host.buffers),
                )
        self._anchors.check(self._updated)

    def _replica_groups(self, per_replica: Mapping[str, Setting]) -> Dict[str, ReplicaGroups]:
        found = {
            name: ReplicaGroups(name, *setting, replicas=self.batching.replication_factor)
            for name, setting in per_replica.items()
        }
        for name, groups in found.items():
            groups.from_host(plain(self.host.parameters[name]))  # checks the shape
        return found

    def _training_step(self, executable: Executable, source: OptimizerTracker) -> GradientStep:
        kind = functools.partial(CompiledStep, self._compiled_step) if self._compiles_with_torch else GradientStep
        optimizer = source.on_device(
            executable,
            self.host.compiled,
            self.graph.differentiated,
            store_for(self._precision),
            self._compiles_with_torch,
        )
        accum_type = source.description.accum_type
        settings = self._options, self._precision, self._reduce
        return kind(executable, optimizer, accum_type, *settings, self._anchors.gradients)

    def _check_buffers(self) -> None:
        shared = self.batching.group_size < self.batching.replication_factor and self._options.broadcast_buffers
        if self.graph.written_buffers and shared:
            raise backend_error(
                "PopTorch does not support broadcasting buffers: the model modifies "
                f"{list(self.graph.written_buffers)}, and {self.batching.replication_factor} replicas would each have "
                "their own values. If that is acceptable, call Options.broadcastBuffers(False)."
            )
        for name in self.graph.written_buffers:
            host = plain(self.host.buffers[name])
            if shares_memory(host):
                raise backend_error(
                    f"The model modifies the buffer {name}, of shape {tuple(host.shape)} and strides {host.stride()}: "
                    "elements of it share memory, which those of a tensor on the IPU do not. Register a .clone() of it."
                )

    @property
    def _differentiable(self) -> List[str]:
        """Names of the parameters that require gradients on the host.

        In inference PyTorch computes none, but chooses its kernels by them: `F.linear` has another for frozen weights.
        """
        wanted = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]
        with DisableTorchFunctionSubclass():
            return [name for name in self.graph.weights if wanted(self.host.parameters[name])]

    @property
    def _trained(self) -> List[str]:
        """Names of the parameters that updates change."""
        return self._differentiable if self._training else []

    @property
    def _updated(self) -> List[str]:
        """Those of them that the loss depends on."""
        return [name for name in self._trained if name in self.graph.differentiated]


def _together(options: Options) -> Replicas:
    """Return the replicas of this process, connected with those of the others."""
    process, processes = options.Distributed.processId, options.Distributed.numProcesses
    return Replicas(options.replication_factor, process, connected(processes) if processes > 1 else None)
