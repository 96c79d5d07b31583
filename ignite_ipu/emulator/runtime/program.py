"""`DeviceProgram`: a compiled model, and its calls while it is loaded."""

from __future__ import annotations

import itertools
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from ignite_ipu.emulator.compiler.graph import on_the_host
from ignite_ipu.emulator.device.device import Meter
from ignite_ipu.emulator.runtime.call_times import Times
from ignite_ipu.emulator.runtime.compilation import CompiledModel
from ignite_ipu.emulator.runtime.executable import RandomStream
from ignite_ipu.emulator.runtime.inputs import Inputs
from ignite_ipu.emulator.runtime.loading import Loaded, Loader
from ignite_ipu.emulator.runtime.optimizer_tracker import OptimizerTracker
from ignite_ipu.emulator.runtime.report import report_for
from ignite_ipu.emulator.runtime.results import Results
from ignite_ipu.emulator.runtime.weight_copies import WeightCopies
from ignite_ipu.emulator.trace import number_formats
from ignite_ipu.emulator.trace.refusals import without_half_kernel

_SEEDS = itertools.count(42)


class DeviceProgram:
    """The program of one model for one kind of arguments.

    Args:
        compiled: The compiled model.
        optimizer: The optimizer of a model that trains.
        meter: Counts the events of the executor.

    Attributes:
        compiled: The compiled model.
        needs_ipu: Whether there is work for an IPU.
        loaded: Its state on the device, None while it is on none.
        random: The random stream of its calls.
        report: The report that the options ask for, or None.
    """

    def __init__(self, compiled: CompiledModel, optimizer: Optional[OptimizerTracker], meter: Meter) -> None:
        self.compiled = compiled
        graph, options, training = compiled.graph, compiled.options, compiled.training
        self._training, self._meter = training, meter
        self._copies = WeightCopies(compiled.host, graph, training, meter)
        seed = options("random_seed") if options.exists("random_seed") else next(_SEEDS)
        self.random = RandomStream(int(seed), alike=not on_the_host(graph.nodes))
        self._loader = Loader(compiled, optimizer, self.random)
        self._inputs = Inputs(graph.inputs, options)
        self._results = Results(graph.positions, training)
        self.report = report_for(compiled)
        # Micro-batches of a call, and those of which outputs are returned.
        self._sizes = compiled.batching.micro_batches, compiled.batching.returned
        self.needs_ipu = compiled.needs_ipu
        self.loaded: Optional[Loaded] = None

    @property
    def attached(self) -> bool:
        """True while the program's IPUs are held and loaded; always, for a graph without work for an IPU."""
        return self.loaded is not None or not self.needs_ipu

    def attach(self, owner: object) -> None:
        self.loaded = self._loader.load(owner, *self._copies.host_values())
        self._meter.add(attaches=1)
        self._copies.count_upload(self.loaded.executable)

    def detach(self) -> None:
        loaded, self.loaded = self.loaded, None
        if loaded is not None:
            self._meter.add(detaches=1)
            if loaded.give_back is not None:
                loaded.give_back()

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
        compiled, loaded = self.compiled, self.loaded
        graph = compiled.graph
        if loaded is not None and not self._training and not self._copies.edits_reported:
            self._copies.report_stale_weights(loaded.executable)
        started = time.perf_counter()
        # Without work for an IPU, forward returns constants alone.
        outputs = [] if loaded is None else self._run(loaded, inputs)
        for place in graph.written_inputs:
            if inputs[place].data_ptr() != given[place].data_ptr():
                given[place].detach().copy_(inputs[place])
        seconds = time.perf_counter() - started
        on_device = (None, None) if loaded is None else (loaded.executable, loaded.step)
        anchored = compiled.anchors.values(outputs, graph.extras, *on_device)
        micro_batches, returned = self._sizes
        steps, returned = (0, 0) if self._inputs.synthetic else (micro_batches, returned)
        # Each device iteration of training updates the weights.
        self._meter.add_call(micro_batches, compiled.batching.device_iterations if self._training else 0)
        results = self._results.of(graph, outputs)
        return results, anchored, Times(len(graph.inputs), steps, len(outputs), returned, seconds)

    def _run(self, loaded: Loaded, inputs: List[torch.Tensor]) -> List[torch.Tensor]:
        """Return everything that the graph returns, stacked."""
        executable, step = loaded.executable, loaded.step
        report, synthetic, default_dtype = self.report, self._inputs.synthetic, self.compiled.capture.default_dtype
        run = executable.infer if step is None else step.train
        try:
            if torch.get_default_dtype() is default_dtype and not synthetic and report is None:
                return run(inputs)
            with number_formats.by_default(default_dtype):
                if synthetic:
                    with self.random.drawn():
                        inputs = list(map(synthetic, inputs))
                if report is None:
                    return run(inputs)
                with report.profiled(executable, step):
                    return run(inputs)
        except RuntimeError as error:
            explained = without_half_kernel(error)
            if explained is None:
                raise
            raise explained from error

    def upload(self) -> None:
        if self.loaded is not None:
            self._copies.upload(self.loaded.executable)

    def upload_buffers(self, buffers: Mapping[str, torch.Tensor]) -> None:
        self._copies.upload_buffers(None if self.loaded is None else self.loaded.executable, buffers)

    def download(self) -> None:
        if self.loaded is not None:
            self._copies.download(self.loaded.executable)

    def memory(self) -> Dict[str, int]:
        """Return the bytes that the device holds, by kind; empty while it is not attached."""
        return {} if self.loaded is None else self.loaded.memory()
