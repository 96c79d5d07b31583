"""`CompiledModel`: a model captured for arguments of one kind, placed on its IPUs, and checked."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Mapping, Optional, Sequence

import torch
from torch import nn

from ignite_ipu.emulator.compiler import batching
from ignite_ipu.emulator.compiler.graph import Graph, dump
from ignite_ipu.emulator.compiler.placement import BlockPlacement
from ignite_ipu.emulator.compiler.tracing import tensors_by_name, trace
from ignite_ipu.emulator.device.device import Meter
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.files import cache
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.runtime.anchors import Anchors, update_tensors
from ignite_ipu.emulator.runtime.host_tensors import HostTensors, shares_memory
from ignite_ipu.emulator.runtime.optimizer_tracker import OptimizerTracker
from ignite_ipu.emulator.trace.active import IpuTensor
from ignite_ipu.emulator.values.arguments import Arguments
from ignite_ipu.emulator.values.replica_groups import ReplicaGroups, Setting
from ignite_ipu.emulator.values.structures import flatten_tensors
from ignite_ipu.emulator.values.wrapping import plain
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


class CompiledModel:
    """The result of a compilation, before any device has it.

    Attributes:
        arguments: The arguments that it was compiled for, without their values.
        options: The options that it was compiled with.
        training: Whether it trains.
        name: Its name in reports.
        batching: The factors of a call.
        host: The host's tensors.
        anchors: The tensors that the options anchor.
        placement: The IPUs of each block.
        graph, capture: The compiled graph, and the recorded one that it was made from.
        ipus: IPUs that all replicas take.
        groups: Parameters that differ between replicas.
    """

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
        self.options, self.training = options, training
        kind = "training" if training else "inference"
        self.name = str(options("model_name")) if options.exists("model_name") else kind
        self.batching = batching.from_options(options)
        self.host = HostTensors(model)
        if optimizer is not None:
            optimizer.check_parameters(self.host.compiled)
        self.anchors = Anchors(options, training)
        self.placement = BlockPlacement(options._execution_strategy)
        compiled_in = None if optimizer is None else optimizer.description.compiled_in
        entry = cache.lookup(options, training, compiled_in, self.name, meter)
        fold = None if entry is None else entry.fold
        self.graph: Graph
        try:
            self.graph, self.capture = trace(
                model,
                arguments,
                self.batching,
                self.placement,
                options,
                training,
                per_replica,
                self.anchors.of_graph,
                fold,
            )
        finally:
            self.placement.close()
        self._check()
        if entry is not None:
            entry.store(self.graph)
        dump(self.graph)
        self.ipus = self.placement.ipus(options)
        self.groups = self._replica_groups(per_replica)

    @property
    def needs_ipu(self) -> bool:
        """True if there is work for an IPU: forward may return constants alone."""
        graph = self.graph
        computes = any(place is not None for place in graph.positions) or graph.extras
        return self.training or bool(computes or graph.written_inputs or graph.written_buffers)

    @property
    def differentiable(self) -> List[str]:
        """Names of the parameters that require gradients on the host.

        In inference PyTorch computes none, but chooses its kernels by them: `F.linear` has another for frozen weights.
        """
        wanted = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]
        with DisableTorchFunctionSubclass():
            return [name for name in self.graph.weights if wanted(self.host.parameters[name])]

    def take_values(self, constants: Sequence[torch.Tensor], frozen: Dict[int, torch.Tensor]) -> None:
        """Replace the values that were compiled in by those of an earlier compilation of the same graph."""
        self.graph = dataclasses.replace(self.graph, constants=tuple(constants), frozen=frozen)

    def tensor_names(self) -> List[str]:
        """Return the names of the graph's tensors: parameters and buffers by those of the model."""
        return [*tensors_by_name(self.capture), *update_tensors(self._updated)]

    @property
    def _updated(self) -> List[str]:
        """Names of the parameters that updates change, and that the loss depends on."""
        return [name for name in self.differentiable if name in self.graph.differentiated] if self.training else []

    def _check(self) -> None:
        self.placement.check(self.options, self.training)
        self.placement.check_graph(self.capture.graph)
        returned = [leaf.node for leaf in flatten_tensors(self.graph.structure) if isinstance(leaf, IpuTensor)]
        for check in self.capture.checks:
            check(returned, self.options, self.placement)
        self._check_buffers()
        for name in self.options._Popart._value("updatableNamedBuffers", []):
            if name not in self.host.buffers:
                logger.warning(
                    "updatableNamedBuffers names %r, which is no buffer of the model: it is never updated. Its buffers "
                    "are %s.",
                    name,
                    list(self.host.buffers),
                )
        self.anchors.check(self._updated)

    def _check_buffers(self) -> None:
        shared = self.batching.group_size < self.batching.replication_factor and self.options.broadcast_buffers
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

    def _replica_groups(self, per_replica: Mapping[str, Setting]) -> Dict[str, ReplicaGroups]:
        found = {
            name: ReplicaGroups(name, *setting, replicas=self.batching.replication_factor)
            for name, setting in per_replica.items()
        }
        for name, groups in found.items():
            groups.from_host(plain(self.host.parameters[name]))  # checks the shape
        return found
