"""A compiled program: the captured graph, where it is placed, and its state on the device while it is attached."""

from __future__ import annotations

import functools
import itertools
import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

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
from ignite_ipu.emulator.errors import backend_error, python_error
from ignite_ipu.emulator.files import cache
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.popdist.communication import connected
from ignite_ipu.emulator.popdist.replicas import Replicas
from ignite_ipu.emulator.runtime import loss_scaling
from ignite_ipu.emulator.runtime.executable import Executable, RandomStream
from ignite_ipu.emulator.runtime.host_tensors import HostTensors, receive, shares_memory
from ignite_ipu.emulator.runtime.optimizer_tracker import OptimizerTracker
from ignite_ipu.emulator.runtime.report import report_for
from ignite_ipu.emulator.runtime.training_step import CompiledStep, GradientStep, reducer, store_for
from ignite_ipu.emulator.trace import number_formats
from ignite_ipu.emulator.trace.active import IpuTensor
from ignite_ipu.emulator.trace.refusals import without_half_kernel
from ignite_ipu.emulator.values.arguments import Arguments
from ignite_ipu.emulator.values.replica_groups import ReplicaGroups, Setting
from ignite_ipu.emulator.values.structures import flatten_tensors, replace_tensors
from ignite_ipu.emulator.values.wrapping import all_plain, counted, counts, plain, versions
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_GRADIENT, _UPDATED = _OF_UPDATES = ("Gradient___", "UpdatedVar___")
_LOSS_SCALING = "finalLossScale"
_INT32 = torch.iinfo(torch.int32)
_SEEDS = itertools.count(42)

Events = List[List[float]]
Latency = Tuple[float, float, float]


class Times(NamedTuple):
    """The time stamps of one call, in seconds since it began.

    Host and device share their memory here, so that crossing takes no time: all inputs are there when the call begins,
    and all outputs when it ends.
    """

    inputs: int = 0
    steps: int = 0  # Micro-batches of each input that cross; none where data are synthetic.
    outputs: int = 0
    returned: int = 0  # The same of each output.
    seconds: float = 0.0

    def counters(self) -> Dict[str, Events]:
        """Return the time stamps by event, then tensor, then step."""
        begin: Events = [[0.0] * self.steps for _ in range(self.inputs)] or [[]]
        end: Events = [[self.seconds] * self.returned for _ in range(self.outputs)] or [[]]
        return {"input": begin, "input_complete": begin, "output": end, "output_complete": end}

    def latency(self) -> Latency:
        """Return minimum, maximum and mean seconds from a step's input to its output."""
        seconds = self.seconds if self.inputs and self.steps and self.outputs and self.returned else 0.0
        return seconds, seconds, seconds


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
        self._anchors = {short: long_name for short, (long_name, *_) in dict(options("anchored_tensors")).items()}
        self.placement = BlockPlacement(options._execution_strategy)
        anchors = [name for name in self._anchors.values() if not self._comes_from_update(name)]
        compiled_in = None if optimizer is None else optimizer.description.compiled_in
        entry = cache.lookup(options, training, compiled_in, self._name, meter)
        fold = None if entry is None else entry.fold
        try:
            self.graph, self.capture = trace(
                model, arguments, self.batching, self.placement, options, training, per_replica, anchors, fold
            )
        finally:
            self.placement.close()
        self._check()
        if entry is not None:
            entry.store(self.graph)
        dump(self.graph)
        self.ipus = self.placement.ipus(options)
        self._groups = self._replica_groups(per_replica)
        self._reduce = reducer(options.Distributed.numProcesses) if training else None
        self._replicas = _together(options) if self.graph.between_replicas else None
        seed = options("random_seed") if options.exists("random_seed") else next(_SEEDS)
        self.random = RandomStream(int(seed), alike=not on_the_host(self.graph.nodes))
        self._synthetic = _synthetic_data(int(options._Popart._value("syntheticDataMode", 0)))
        self.report = report_for(options, self._name)
        # Exceptions and stochastic rounding act on the result of each operator, which compiled code does not have.
        self._precision = self.capture.precision
        each_result = self._precision.floating_point_exceptions or self._precision.stochastic_rounding
        self._compiles_with_torch = torch_compile_wanted() and not (each_result or self.graph.between_replicas)
        self._compiled: Optional[Graph] = None
        self._compiled_step = Compiled(self._name)
        self._executable: Optional[Executable] = None
        self._step: Optional[GradientStep] = None
        self._gradients = [name[len(_GRADIENT) :] for name in self._anchors.values() if name.startswith(_GRADIENT)]
        self._give_back: Optional[Callable[[], object]] = None
        self._host_versions: Dict[str, int] = {}
        # The same in lists, for a fast look in each call.
        self._crossed: Tuple[List[torch.Tensor], List[int]] = [], []
        self._edits_reported = self._non_contiguous_seen = False
        self._sized: Optional[Executable] = None
        self._upload_bytes = 0
        graph, positions = self.graph, self.graph.positions
        # Outputs that are another one's tensor: a write of the caller into one must not show in the other.
        self._returned_again = [
            index for index, place in enumerate(positions) if place is not None and place in positions[:index]
        ]
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
        weights, buffers = self._host_values()
        self._executable = executable = Executable(
            self._compiled or self.graph,
            self.batching,
            weights,
            self._trained,
            buffers,
            self._groups,
            self.random,
            self._replicas,
        )
        self._meter.add(attaches=1)
        self._count_upload(executable)
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
        return [self._sent(name, tensor) for name, tensor in zip(self.graph.inputs, given)]

    def call(
        self, inputs: List[torch.Tensor], given: Sequence[torch.Tensor]
    ) -> Tuple[Any, Dict[str, torch.Tensor], Times]:
        """Run one call and return forward's results, the anchored tensors by short name, and the times of their copies.

        The `inputs` are on the device. Values that forward writes to them are copied to the tensors `given` by the
        caller.
        """
        graph, batching = self.graph, self.batching
        if not self._training and not self._edits_reported:
            self._report_stale_weights()
        started = time.perf_counter()
        outputs = self._run(inputs)
        for place in graph.written_inputs:
            if inputs[place].data_ptr() != given[place].data_ptr():
                given[place].detach().copy_(inputs[place])
        seconds = time.perf_counter() - started
        anchored = self._anchored(outputs)
        steps, returned = (0, 0) if self._synthetic else (batching.micro_batches, batching.returned)
        # Each device iteration of training updates the weights.
        self._meter.add_call(batching.micro_batches, batching.device_iterations if self._training else 0)
        return self._returned(outputs), anchored, Times(len(graph.inputs), steps, len(outputs), returned, seconds)

    def _sent(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            tensor = tensor.detach()
        if tensor.dtype is torch.float64:
            return tensor.to(torch.float32, memory_format=torch.contiguous_format)
        if tensor.dtype is torch.int64 and self._synthetic is None:
            # PopTorch would cut such values silently; synthetic data replace them.
            low, high = map(int, torch.aminmax(tensor))
            if low < _INT32.min or high > _INT32.max:
                raise python_error(
                    f"Input {name} of torch.int64 holds values from {low} to {high}: the device's integers are int32 "
                    f"({_INT32.min} to {_INT32.max})."
                )
        if tensor.is_contiguous():
            return tensor
        if not self._non_contiguous_seen:
            logger.warning("At least one input tensor is not contiguous (%s): it is copied on every call.", name)
            self._non_contiguous_seen = True
        return tensor.contiguous()

    def _run(self, inputs: List[torch.Tensor]) -> List[torch.Tensor]:
        """Return everything that the graph returns, stacked."""
        executable = self._executable
        if executable is None:
            return []  # forward returns constants alone
        step, report = self._step, self.report
        run = executable.infer if step is None else step.train
        try:
            if torch.get_default_dtype() is self.capture.default_dtype and not self._synthetic and report is None:
                return run(inputs)
            with number_formats.by_default(self.capture.default_dtype):
                if self._synthetic:
                    with self.random.drawn():
                        inputs = list(map(self._synthetic, inputs))
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
        executable = self._executable
        if executable is None:
            return
        weights, buffers = self._host_values()
        executable.set_weights(weights)
        executable.set_buffers(buffers)
        self._count_upload(executable)

    def upload_buffers(self, buffers: Mapping[str, torch.Tensor]) -> None:
        unknown = [name for name in buffers if name not in self.graph.buffers]
        if unknown:
            raise backend_error(
                f"Named buffer {unknown[0]!r} is not a tensor of the compiled program: only floating-point buffers "
                f"are. Its buffers are {list(self.graph.buffers)}."
            )
        if self._executable is not None:
            self._executable.set_buffers({name: plain(value) for name, value in buffers.items()})
            self._meter.add(weight_upload_bytes=_size(map(plain, buffers.values())))

    def download(self) -> None:
        executable = self._executable
        if executable is None:
            return
        self._report_edits()
        moved = {name: executable.host_weight(name) for name in executable.weights}
        moved.update(executable.buffers[0])
        host = self.host.tensors()
        with torch.no_grad():
            for name, value in moved.items():
                receive(host[name], value)
        self._note_crossing()
        self._meter.add(weight_downloads=1, weight_download_bytes=_size(moved.values()))

    def memory(self) -> Dict[str, int]:
        """Return the bytes that the device holds, by kind; empty while it is not attached."""
        executable = self._executable
        if executable is None:
            return {}
        return {
            "weights": _size(executable.weights.values()),
            "buffers": _size(buffer for own in executable.buffers for buffer in own.values()),
            "constants": _size(self.graph.constants),
            "optimizer_state": 0 if self._step is None else self._step.optimizer.state_bytes,
        }

    def _returned(self, outputs: List[torch.Tensor]) -> Any:
        """Return forward's results, with the tensors of this call."""
        graph = self.graph
        results = [
            graph.frozen[index].clone() if place is None else outputs[place]
            for index, place in enumerate(graph.positions)
        ]
        for index in self._returned_again:
            results[index] = results[index].clone()
        refuse = _refuse_second_backward if self._training else _refuse_backward
        for result in results:
            result.backward = refuse  # type: ignore[method-assign]
        if isinstance(graph.structure, torch.Tensor):
            return results[0]
        return replace_tensors(graph.structure, iter(results))

    def _anchored(self, outputs: List[torch.Tensor]) -> Dict[str, torch.Tensor]:
        found: Dict[str, torch.Tensor] = {}
        gradients = iter(outputs[len(outputs) - len(self._gradients) :])
        for short, name in self._anchors.items():
            if name.startswith(_GRADIENT):
                found[short] = next(gradients)
            elif not self._comes_from_update(name):
                found[short] = outputs[self.graph.extras[name]].clone()
            elif name.startswith(_UPDATED):
                assert self._executable is not None
                found[short] = self._executable.host_weight(name[len(_UPDATED) :]).clone()
            elif self._step is not None:
                found[short] = torch.tensor(self._step.loss_scaling, dtype=torch.float32)
        return found

    def tensor_names(self) -> List[str]:
        """Return the names of the graph's tensors: parameters and buffers by those of the model."""
        return [*tensors_by_name(self.capture), *self.update_tensors()]

    def update_tensors(self) -> List[str]:
        """Return the names of an update's tensors besides the graph: gradients, and parameters after it.

        A parameter that the loss does not depend on has neither.
        """
        updated = [name for name in self._trained if name in self.graph.differentiated]
        return [f"{kind}{name}" for name in updated for kind in _OF_UPDATES]

    def _comes_from_update(self, name: str) -> bool:
        """Return whether a tensor to anchor is none of the graph's that runs on every micro-batch."""
        adapted = name == _LOSS_SCALING and self._training and loss_scaling.enabled(self._options)
        return adapted or name.startswith(_OF_UPDATES)

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
        known = self.update_tensors()
        for name in self._anchors.values():
            if name.startswith(_OF_UPDATES) and name not in known:
                raise backend_error(
                    f"Unknown tensor to anchor: {name!r}. Gradients and updated weights exist in training, for the "
                    "parameters that are trained and that the loss depends on: "
                    f"{[name for name in self._trained if name in self.graph.differentiated]}."
                )

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
        return kind(executable, optimizer, accum_type, *settings, self._gradients)

    def _report_edits(self) -> None:
        """Warn, once, of parameters and buffers that were changed on the host since they last crossed."""
        now = self._versions()
        edited = [name for name, count in self._host_versions.items() if now[name] != count]
        if edited and not self._edits_reported:
            self._edits_reported = True
            logger.warning(
                "%s: edited on the host since the weights last crossed, and never uploaded. The device went on with "
                "its own values, and these replace the edit now: call copyWeightsToDevice() after editing weights.",
                ", ".join(edited),
            )

    def _report_stale_weights(self) -> None:
        """Warn, once, of weights that were changed on the host since they last crossed, and that inference lacks."""
        tensors, before = self._crossed
        executable = self._executable
        if executable is None or counts(tensors) == before:
            return
        now, host = self._versions(), self.host.tensors()
        written = [name for name, count in self._host_versions.items() if now[name] != count]
        device = {name: executable.host_weight(name) for name in written if name in executable.weights}
        device.update(executable.buffers[0])
        edited = [name for name in written if not torch.equal(plain(host[name]).to(device[name].dtype), device[name])]
        if not edited:
            self._note_crossing()  # also on the device
            return
        self._edits_reported = True
        logger.warning(
            "%s: edited on the host since the weights last crossed, and never uploaded. The device computes with its "
            "own values, as with PopTorch: call copyWeightsToDevice() after editing weights.",
            ", ".join(edited),
        )

    def _note_crossing(self) -> None:
        """Record the host's tensors as the ones that the device has."""
        self._host_versions = self._versions()
        if not self._training:
            host = self.host.tensors()
            tensors = [host[name] for name in self._host_versions if counted(host[name])]
            self._crossed = tensors, counts(tensors)

    def _host_values(self) -> Tuple[Dict[str, torch.Tensor], Dict[str, torch.Tensor]]:
        graph, host = self.graph, self.host
        weights = dict(zip(graph.weights, all_plain([host.parameters[name] for name in graph.weights])))
        return weights, dict(zip(graph.buffers, all_plain([host.buffers[name] for name in graph.buffers])))

    def _versions(self) -> Dict[str, int]:
        host, names = self.host.tensors(), (*self.graph.weights, *self.graph.buffers)
        return dict(zip(names, versions([host[name] for name in names])))

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
    def _trained(self) -> List[str]:
        """Names of the parameters that updates change."""
        wanted = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]
        with DisableTorchFunctionSubclass():
            return [name for name in self.graph.weights if self._training and wanted(self.host.parameters[name])]

    def _count_upload(self, executable: Executable) -> None:
        if executable is not self._sized:
            # The sizes of tensors on the device do not change.
            self._sized = executable
            self._upload_bytes = _size([*executable.weights.values(), *executable.buffers[0].values()])
        self._note_crossing()
        self._meter.add(weight_uploads=1, weight_upload_bytes=self._upload_bytes)


def _size(tensors: Iterable[torch.Tensor]) -> int:
    """Return how many bytes tensors take; `Tensor.nbytes` came with PyTorch 2.1."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _synthetic_data(mode: int) -> Optional[Callable[[torch.Tensor], torch.Tensor]]:
    """Return the device's synthetic data for an input, in one of PopART's modes; None in mode 0, Off.

    Integers may be indices, and become zeros in each of them.
    """
    makers = (None, torch.zeros_like, torch.randn_like, torch.rand_like)
    maker = makers[mode]
    return maker and (lambda value: maker(value) if value.is_floating_point() else torch.zeros_like(value))


def _together(options: Options) -> Replicas:
    """Return the replicas of this process, connected with those of the others."""
    process, processes = options.Distributed.processId, options.Distributed.numProcesses
    return Replicas(options.replication_factor, process, connected(processes) if processes > 1 else None)


def _refuse_backward(*args: Any, **kwargs: Any) -> None:
    raise python_error(
        "backward() cannot be called on outputs of an inference model: it computes no gradients, and there was no "
        "training step. Wrap the model with poptorch.trainingModel(model, options, optimizer), whose call computes the "
        "gradients of the loss that forward returns and updates the weights."
    )


def _refuse_second_backward(*args: Any, **kwargs: Any) -> None:
    raise python_error(
        "backward() cannot be called explicitly on outputs of a PopTorch model: the compiled training step has already "
        "computed the gradients and updated the weights."
    )
