"""The optimizer of one executor: what the host says of it, and its counterpart on the device."""

from __future__ import annotations

from typing import Callable, Collection, Dict, Mapping, Optional

import torch
from torch import nn

from ignite_ipu.emulator import loss_scaling
from ignite_ipu.emulator.device import Meter
from ignite_ipu.emulator.enums import MeanReductionStrategy
from ignite_ipu.emulator.optim import foreach
from ignite_ipu.emulator.optim.attribute_tracker import AttributeTracker
from ignite_ipu.emulator.optim.description import OptimizerDescription, describe
from ignite_ipu.emulator.optim.device_optimizer import DeviceOptimizer
from ignite_ipu.emulator.optim.optimizer import IpuState
from ignite_ipu.emulator.optim.optimizer import Optimizer as PoptorchOptimizer
from ignite_ipu.emulator.options import Options

Groups = Dict[str, Optional[int]]


class OptimizerTracker:
    """Follows one optimizer, or its successors, from wrapping to the device.

    Args:
        optimizer: The optimizer that the model was wrapped with.
        options: The executor's own options.
        meter: Counts what is sent.

    Attributes:
        before_download: Called before the state is read from the device; an exception that it raises is the caller's.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, options: Options, meter: Meter) -> None:
        self._options = options
        self._meter = meter
        self.before_download: Callable[[], None] = lambda: None
        self._attributes = AttributeTracker(options)
        self._optimizer = optimizer
        self._compiled: Optional[OptimizerDescription] = None
        self._compiled_strategy = MeanReductionStrategy.Post
        self._device: Optional[DeviceOptimizer] = None
        self._description = self._read(optimizer)
        self._take(optimizer)

    @property
    def description(self) -> OptimizerDescription:
        """The optimizer as it was last read."""
        return self._description

    def set(self, optimizer: torch.optim.Optimizer) -> None:
        """Read an optimizer again, or another one in its place, and send what changed.

        Raises:
            AssertionError, ValueError: The optimizer cannot be read.
            Error: The compiled program cannot take it.
        """
        description = self._read(optimizer)
        if self._compiled is not None:
            description.check_strategy(self._compiled_strategy)
            self._compiled.check_replacement(description)
            description.check_backend()
        if optimizer is not self._optimizer:
            if isinstance(self._optimizer, PoptorchOptimizer):
                self._optimizer._detach()
            self._take(optimizer)
        changed = description != self._description
        self._description = description
        if changed and self._device is not None:
            self._device.set_description(description)
            self._meter.add(optimizer_uploads=1)

    def check_parameters(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Refuse to compile an optimizer over parameters that are not the model's.

        Raises:
            KeyError: A parameter of the optimizer is not one of the model's.
            Error: The back end refuses a value.
        """
        own = {id(parameter) for parameter in parameters.values()}
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in own:
                    raise KeyError(id(parameter))
        self._description.check_backend()
        self._compiled = self._description
        self._compiled_strategy = self.reduction_strategy()

    def reduction_strategy(self) -> MeanReductionStrategy:
        """Return how means are accumulated: float16 accumulators need a running one."""
        if self._description.half_accumulators:
            return MeanReductionStrategy.Running
        return MeanReductionStrategy(self._options.Training.meanAccumulationAndReplicationReductionStrategy)

    def on_device(
        self,
        weights: Mapping[str, torch.Tensor],
        parameters: Mapping[str, nn.Parameter],
        per_replica: Collection[str],
        store: foreach.Store,
    ) -> DeviceOptimizer:
        """Return the optimizer that updates these weights, with the state that the host has for it.

        Args:
            weights: The trainable weights on the device, by name.
            parameters: The host's parameters that they are copies of.
            per_replica: Names of weights with a value for each group of replicas.
            store: Rounds float32 results to float16.
        """
        group_of = {
            id(parameter): index
            for index, group in enumerate(self._optimizer.param_groups)
            for parameter in group["params"]
        }
        groups: Groups = {name: group_of.get(id(parameters[name])) for name in weights}
        self._device = DeviceOptimizer(
            self._description,
            dict(weights),
            groups,
            per_replica=[name for name in weights if name in per_replica],
            store=store,
            adapts_loss_scaling=loss_scaling.enabled(self._options),
        )
        self._meter.add(optimizer_uploads=1)
        self.send_pending_state()
        if isinstance(self._optimizer, PoptorchOptimizer):
            self._optimizer._device_is_newer()
        return self._device

    def before_weight_upload(self) -> None:
        """Read the state back before weights are uploaded, which sets that of a plain torch optimizer to its start."""
        if isinstance(self._optimizer, PoptorchOptimizer):
            self._optimizer._read_back()
        elif self._device is not None:
            self._device.restart()

    def send_pending_state(self) -> bool:
        """Upload a state that was loaded since the last run, and tell whether there was one."""
        optimizer, device = self._optimizer, self._device
        if device is None or not isinstance(optimizer, PoptorchOptimizer):
            return False
        pending = optimizer._pending_state()
        if pending is None:
            return False
        device.write_state(*pending)
        optimizer._uploaded()
        self._meter.add(optimizer_state_uploads=1)
        return True

    @property
    def has_pending_state(self) -> bool:
        """Whether a state was loaded that the device has not got yet."""
        optimizer = self._optimizer
        return isinstance(optimizer, PoptorchOptimizer) and optimizer._pending_state() is not None

    def before_run(self) -> None:
        """Remember that the device's state moves on."""
        if isinstance(self._optimizer, PoptorchOptimizer):
            self._optimizer._device_is_newer()

    def keep_state(self) -> None:
        """Read the state back before the device loses it; a plain torch optimizer's is lost."""
        if isinstance(self._optimizer, PoptorchOptimizer) and self._device is not None:
            self._optimizer._keep_for_next_attach()

    def leave_device(self) -> None:
        """Forget the device's optimizer."""
        self._device = None

    def forget_program(self) -> None:
        """Let the next program be compiled for whatever the optimizer is then."""
        self._device = None
        self._compiled = None

    def _read_optimizer_state(self) -> Optional[IpuState]:
        if self._device is None:
            return None
        self.before_download()
        self._meter.add(optimizer_state_downloads=1)
        return self._device.read_state()

    def _take(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        if isinstance(optimizer, PoptorchOptimizer):
            optimizer._attach_to(self)

    def _read(self, optimizer: torch.optim.Optimizer) -> OptimizerDescription:
        description = describe(optimizer, loss_scaling.enabled(self._options))
        self._attributes.check(optimizer, description)
        return description
