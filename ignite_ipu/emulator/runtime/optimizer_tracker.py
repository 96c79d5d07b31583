"""The optimizer of one executor: its description on the host, and its counterpart on the device."""

from __future__ import annotations

from typing import Any, Callable, Collection, Dict, Mapping, Optional

import torch
from torch import nn

from ignite_ipu.emulator.device.device import Meter
from ignite_ipu.emulator.enums import MeanReductionStrategy
from ignite_ipu.emulator.optim.description import AttributeTracker, OptimizerDescription, describe
from ignite_ipu.emulator.optim.device import foreach
from ignite_ipu.emulator.optim.device.optimizer import DeviceOptimizer
from ignite_ipu.emulator.optim.optimizer import IpuState
from ignite_ipu.emulator.optim.optimizer import Optimizer as PoptorchOptimizer
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.runtime import loss_scaling
from ignite_ipu.emulator.runtime.executable import Executable

_STRATEGY = "meanAccumulationAndReplicationReductionStrategy"


class OptimizerTracker:
    """Follows one optimizer, or its successors, from wrapping to the device.

    A PopTorch optimizer gets `state_dict` in the place of its own. `before_download` is called before the state is read
    from the device, and may raise; it is the executor's, which lives as long as the optimizer has that method.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, options: Options, meter: Meter, before_download: Callable[[], None]
    ) -> None:
        self._options = options
        self._meter = meter
        self._before_download = before_download
        self._attributes = AttributeTracker(options)
        self._optimizer = optimizer
        self._compiled: Optional[OptimizerDescription] = None
        self._device: Optional[DeviceOptimizer] = None
        # The optimizer's record when a description was refused, which leaves it marked as to be uploaded.
        self._refused: Optional[object] = None
        self.description = self._read(optimizer)  # as it was last read
        self._take(optimizer)

    def set(self, optimizer: torch.optim.Optimizer) -> None:
        """Read an optimizer again, or another one in its place, and send the changes.

        Raises:
            AssertionError, ValueError: The optimizer cannot be read.
            Error: The compiled program cannot take it. It is the executor's all the same, with values that the device
                does not have, and its state cannot be read until others are accepted.
        """
        description = self._read(optimizer)
        if optimizer is not self._optimizer:
            self._release()
        self._take(optimizer)
        if description == self.description:
            return
        self.description = description
        if self._compiled is not None:
            if isinstance(optimizer, PoptorchOptimizer) and not optimizer.ipu_state_is_dirty:
                optimizer.ipu_state_is_dirty = True
                self._refused = optimizer._record
            self._check_replacement()
            self._accept()
        if self._device is not None:
            self._device.set_description(description)
            self._meter.add(optimizer_uploads=1)

    def state_dict(self) -> Dict[str, Any]:
        """Return the result of the optimizer's own method, with its newest state."""
        self.read_back()
        return type(self._optimizer).state_dict(self._optimizer)

    def read_back(self) -> torch.optim.Optimizer:
        """Make the state on the device the optimizer's record, if it is newer, and return the optimizer."""
        optimizer = self._optimizer
        if not isinstance(optimizer, PoptorchOptimizer) or not optimizer.host_state_is_dirty:
            return optimizer
        if optimizer.ipu_state_is_dirty:
            raise AssertionError(
                "The optimizer's state is newer on the device and, at once, is to be uploaded: a setOptimizer() was "
                "refused. Give the optimizer its former values back and call setOptimizer() again."
            )
        if self._device is not None:
            self._before_download()
            self._meter.add(optimizer_state_downloads=1)
            optimizer._record = dict(zip(("ipu_state", "ipu_param"), self._device.read_state()))
        optimizer.host_state_is_dirty = False
        return optimizer

    def check_parameters(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Refuse to compile an optimizer over parameters that are not the model's."""
        own = set(map(id, parameters.values()))
        for group in self._optimizer.param_groups:
            for each in group["params"]:
                if id(each) not in own:
                    raise KeyError(id(each))
        self.description.check_backend()
        self._compiled = self.description

    def on_device(
        self,
        executable: Executable,
        parameters: Mapping[str, nn.Parameter],
        differentiated: Collection[str],
        store: foreach.Store,
        fused: bool,
    ) -> DeviceOptimizer:
        """Return the optimizer that updates the trainable weights on the device, with the state that the host has."""
        group_of = {
            id(parameter): index
            for index, group in enumerate(self._optimizer.param_groups)
            for parameter in group["params"]
        }
        names = executable.trainable
        self._check_replacement()
        self._device = DeviceOptimizer(
            self.description,
            {name: executable.weights[name] for name in names},
            {name: group_of.get(id(parameters[name])) for name in names},
            per_replica={name: executable.grouped[name] for name in names if name in executable.grouped},
            store=store,
            fused=fused,
            adapts_loss_scaling=loss_scaling.enabled(self._options),
            differentiated=differentiated,
        )
        self._meter.add(optimizer_uploads=1)
        self.send_pending_state()
        self.before_run()
        return self._device

    def before_weight_upload(self) -> None:
        """Read the state back before weights are uploaded, which sets that of a plain torch optimizer to its start."""
        self.read_back()
        if self._device is not None and not isinstance(self._optimizer, PoptorchOptimizer) and self._device.has_state:
            self._device.restart()

    def send_pending_state(self) -> None:
        """Upload a state that was loaded since the last run, if there is one."""
        optimizer, pending = self._optimizer, self.pending
        if self._device is not None and pending is not None and isinstance(optimizer, PoptorchOptimizer):
            self._device.write_state(*pending)
            optimizer.ipu_state_is_dirty = False
            self._meter.add(optimizer_state_uploads=1)

    def before_run(self) -> None:
        """Remember that the device's state moves on."""
        if isinstance(self._optimizer, PoptorchOptimizer):
            self._optimizer.host_state_is_dirty = True

    def keep_state(self) -> None:
        """Read the state back before the device loses it; a plain torch optimizer's is lost."""
        self.read_back()
        if isinstance(self._optimizer, PoptorchOptimizer):
            self._optimizer.ipu_state_is_dirty = self._optimizer.has_state()

    def leave_device(self) -> None:
        self._device = None

    def forget_program(self) -> None:
        """Let the next program be compiled for the optimizer at that time."""
        self._device = self._compiled = None

    @property
    def pending(self) -> Optional[IpuState]:
        """A state that was loaded and that the device has not got yet."""
        optimizer = self._optimizer
        if not isinstance(optimizer, PoptorchOptimizer) or not optimizer.ipu_state_is_dirty:
            return None
        # One that is marked because its description was refused has nothing that the device lacks.
        return None if self._refused is optimizer._record else optimizer._recorded()

    def _accept(self) -> None:
        optimizer = self._optimizer
        if isinstance(optimizer, PoptorchOptimizer) and self._refused is optimizer._record:
            optimizer.ipu_state_is_dirty = False
        self._refused = None

    def _check_replacement(self) -> None:
        if self._compiled is not None:
            self._compiled.check_replacement(self.description)
            self.description.check_backend()

    def _release(self) -> None:
        """Let the optimizer have its newest state and its own method, because another takes its place."""
        optimizer = self._optimizer
        if isinstance(optimizer, PoptorchOptimizer):
            if self._refused is optimizer._record:
                optimizer.host_state_is_dirty = False  # the state is one that the device never took it for
                self._accept()
            self.read_back()
            optimizer.__dict__.pop("state_dict", None)

    def _take(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        if isinstance(optimizer, PoptorchOptimizer) and optimizer.__dict__.get("state_dict") != self.state_dict:
            optimizer.state_dict()  # the newest, if another executor had it
            optimizer.__dict__["state_dict"] = self.state_dict
            optimizer.ipu_state_is_dirty = optimizer.has_state()

    def _read(self, optimizer: torch.optim.Optimizer) -> OptimizerDescription:
        description = describe(optimizer, loss_scaling.enabled(self._options))
        self._attributes.check(optimizer, description)
        if self._compiled is not None:
            description.check_strategy(MeanReductionStrategy(self._options.Training(_STRATEGY)))
        elif description.accum_type is torch.float16:
            # Although the options are frozen: the caller has its own copy.
            self._options.Training._values[_STRATEGY] = MeanReductionStrategy.Running
        return description
