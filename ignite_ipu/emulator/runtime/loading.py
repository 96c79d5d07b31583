"""`Loader`: brings a compiled model to the IPUs, where it is `Loaded` until it gives them back."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Callable, Dict, Optional

import torch

from ignite_ipu.emulator.compiler.graph import Graph
from ignite_ipu.emulator.compiler.inductor import Compiled
from ignite_ipu.emulator.compiler.inductor import compiled as torch_compiled
from ignite_ipu.emulator.compiler.inductor import wanted as torch_compile_wanted
from ignite_ipu.emulator.device.device import acquire
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.popdist.communication import connected
from ignite_ipu.emulator.popdist.replicas import Replicas
from ignite_ipu.emulator.runtime.compilation import CompiledModel
from ignite_ipu.emulator.runtime.executable import Executable, RandomStream
from ignite_ipu.emulator.runtime.optimizer_tracker import OptimizerTracker
from ignite_ipu.emulator.runtime.training_step import CompiledStep, GradientStep, reducer, store_for
from ignite_ipu.emulator.runtime.weight_copies import size_of


@dataclass(frozen=True)
class Loaded:
    """A program while its IPUs are held.

    Attributes:
        executable: The graph with its weights and buffers.
        step: The gradients and the update; None for inference.
        give_back: Releases the IPUs; None for an IPU model, which takes none.
    """

    executable: Executable
    step: Optional[GradientStep]
    give_back: Optional[Callable[[], object]]

    def memory(self) -> Dict[str, int]:
        """Return the bytes that the device holds, by kind."""
        executable = self.executable
        return {
            "weights": size_of(executable.weights.values()),
            "buffers": size_of(buffer for own in executable.buffers for buffer in own.values()),
            "constants": size_of(executable.graph.constants),
            "optimizer_state": 0 if self.step is None else self.step.optimizer.state_bytes,
        }


class Loader:
    """Loads one compiled model, again after each time that its IPUs were given back.

    Args:
        compiled: The model.
        optimizer: The optimizer of a model that trains.
        random: The random stream of its calls.

    Raises:
        Error: It computes with other processes, which are not connected.
    """

    def __init__(self, compiled: CompiledModel, optimizer: Optional[OptimizerTracker], random: RandomStream) -> None:
        options = compiled.options
        self._compiled, self._optimizer, self._random = compiled, optimizer, random
        self._reduce = reducer(options.Distributed.numProcesses) if compiled.training else None
        self._replicas = _together(options) if compiled.graph.between_replicas else None
        # Exceptions and stochastic rounding act on the result of each operator, which compiled code does not have.
        precision = compiled.capture.precision
        each_result = precision.floating_point_exceptions or precision.stochastic_rounding
        self._compiles_with_torch = torch_compile_wanted() and not (each_result or compiled.graph.between_replicas)
        # Code of torch.compile, for inference and for training.
        self._fast_graph: Optional[Graph] = None
        self._fast_step = Compiled(compiled.name)

    def load(self, owner: object, weights: Dict[str, torch.Tensor], buffers: Dict[str, torch.Tensor]) -> Loaded:
        """Take the IPUs, at the latest until the owner is collected, and bring the host's values there.

        Raises:
            Error: No IPUs are free.
        """
        compiled, options = self._compiled, self._compiled.options
        give_back = None
        if not options._uses_ipu_model():  # IPU models are unlimited in number
            ipu_id = options("ipu_id") if options.exists("ipu_id") else None
            give_back = acquire(compiled.ipus, owner, f"PoplarExecutor {compiled.name}", ipu_id)
        if self._compiles_with_torch and self._fast_graph is None and not compiled.training:
            self._fast_graph = torch_compiled(compiled.graph, compiled.name)
        try:
            executable = Executable(
                self._fast_graph or compiled.graph,
                compiled.batching,
                weights,
                compiled.differentiable,
                buffers,
                compiled.groups,
                self._random,
                self._replicas,
            )
            step = None if self._optimizer is None else self._training_step(executable, self._optimizer)
        except BaseException:
            if give_back is not None:
                give_back()
            raise
        return Loaded(executable, step, give_back)

    def _training_step(self, executable: Executable, source: OptimizerTracker) -> GradientStep:
        compiled = self._compiled
        kind = functools.partial(CompiledStep, self._fast_step) if self._compiles_with_torch else GradientStep
        precision = compiled.capture.precision
        optimizer = source.on_device(
            executable,
            compiled.host.compiled,
            compiled.graph.differentiated,
            store_for(precision),
            self._compiles_with_torch,
        )
        settings = compiled.options, precision, self._reduce
        return kind(executable, optimizer, source.description.accum_type, *settings, compiled.anchors.gradients)


def _together(options: Options) -> Replicas:
    """Return the replicas of this process, connected with those of the others."""
    process, processes = options.Distributed.processId, options.Distributed.numProcesses
    return Replicas(options.replication_factor, process, connected(processes) if processes > 1 else None)
