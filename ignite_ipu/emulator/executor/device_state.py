"""State of an executor besides its program: the host's and the device's weights, random numbers, and faults."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional

import torch
from torch import nn

from ignite_ipu.emulator.device import faults
from ignite_ipu.emulator.device.device import Meter
from ignite_ipu.emulator.device.faults import Fault
from ignite_ipu.emulator.errors import python_error
from ignite_ipu.emulator.executor.observation import Observation
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.runtime.optimizer_tracker import OptimizerTracker
from ignite_ipu.emulator.runtime.program import DeviceProgram
from ignite_ipu.emulator.values.wrapping import Wrapping, fetch, holder_of, is_wrapped


class DeviceState:
    """Weights, optimizer and random state of one executor, on the host and on the device.

    `model` is the traced copy of the user's model.
    """

    def __init__(
        self, user_model: nn.Module, model: nn.Module, options: Options, observation: Observation, meter: Meter
    ) -> None:
        self._user_model = user_model
        self._model = model
        self._updatable_buffers: List[str] = options._Popart._value("updatableNamedBuffers", [])
        self._observation = observation
        self._meter = meter
        self._uploaded: Optional[int] = 0
        self.optimizer: Optional[OptimizerTracker] = None  # in training
        self.wrapping: Optional[Wrapping] = None  # in training: makes reading the user's weights fetch them
        # The device may have changed the weights since the two copies were last the same.
        self.device_is_newer = False
        self.downloads = 0
        # The host's copy; None before the first run of a model without a seed.
        self.random = [int(options("random_seed"))] if options.exists("random_seed") else None
        self.random_is_stale = False
        # The fault after which the device no longer answers, until its IPUs are released.
        self.fault: Optional[Fault] = None

    def check_answers(self) -> None:
        if self.fault is not None:
            raise self.fault.error()

    def fail_on_demand(self, kind: str, program: Optional[DeviceProgram]) -> None:
        """Fail as requested for this "call" or "copy", or if the device no longer answers."""
        self.check_answers()
        fault = faults.next_fault(kind)
        if fault is not None:
            self.fault = fault if fault.lasting and program is not None and program.attached else None
            raise fault.error()

    def load(self, program: DeviceProgram, owner: object) -> None:
        self.fail_on_demand("copy", program)
        with self._observation.call("attachToDevice"):
            self.fetch()
            self._follow_model(program)
            program.attach(owner)
        if self.random is not None:
            program.random.write(self.random)

    def leave(self, program: DeviceProgram) -> None:
        """Release the IPUs; their content is lost."""
        self._observation.write_report(program, self._meter)
        program.detach()
        self.fault = None
        if self.optimizer is not None:
            self.optimizer.leave_device()

    def to_host(self, program: DeviceProgram) -> None:
        """Download the device's weights into the host's tensors."""
        if program.attached:
            self.fail_on_demand("copy", program)
        # Off while the tensors are written to, which would ask for them again.
        newer, self.device_is_newer = self.device_is_newer, False
        try:
            self._follow_model(program)
            with self._observation.call("copyWeightsToHost"):
                program.download()
        except BaseException:
            self.device_is_newer = newer
            raise
        self.downloads += 1

    def fetch_if_newer(self, program: DeviceProgram) -> bool:
        """Download the weights if the device's are newer than the host's, and return whether that happened."""
        newer = self.device_is_newer
        if newer:
            self.to_host(program)
        return newer

    def to_device(self, program: DeviceProgram) -> None:
        """Upload the host's weights, after the state that an optimizer loses with it."""
        self.device_is_newer = False
        if not program.attached:
            return
        self.fail_on_demand("copy", program)
        with self._observation.call("copyWeightsToDevice"):
            if self.optimizer is not None:
                self.optimizer.before_weight_upload()
            self._follow_model(program)
            self.fetch(program.compiled.host.tensors().values())
            program.upload()

    def buffers_to_device(self, program: DeviceProgram) -> None:
        """Upload the host's copy of the buffers that the options list as updatable."""
        if not self._updatable_buffers:
            raise python_error(
                "No named buffers marked as updatable: list them with Options.updatableNamedBuffers before compiling."
            )
        self.device_is_newer = False
        self.fetch()
        own: Dict[str, torch.Tensor] = dict(self._model.named_buffers())
        program.upload_buffers({name: own[name] for name in self._updatable_buffers if name in own})

    def fetch(self, tensors: Optional[Iterable[torch.Tensor]] = None) -> None:
        """Make the host's weights the newest: a read of a wrapped parameter makes its trainer download.

        The tensors are those of the model by default.
        """
        own = (*self._model.parameters(), *self._model.buffers()) if tensors is None else tensors
        # All of a class are tied to one executor.
        for tensor in {type(each): each for each in own}.values():
            fetch(tensor)

    def refresh(self, program: DeviceProgram) -> None:
        """Upload the weights if the training executor of the same model has changed them since the last time."""
        if not is_wrapped(self._model):
            return
        trainer: Any = holder_of(self._model)
        if trainer is not None:
            trainer.copyWeightsToHostIfNeeded()
        downloads = None if trainer is None else trainer._life.state.downloads
        if downloads != self._uploaded:
            self.to_device(program)
            self._uploaded = downloads

    def wrap_again(self) -> None:
        """Make reading the weights fetch them again, after an unwrapping."""
        if self.wrapping is not None and not is_wrapped(self._user_model):
            self.wrapping.wrap_tensors(self._user_model)

    def read_random(self, program: DeviceProgram) -> Optional[List[int]]:
        """Return the random state, the device's if that has moved on; None if there is none to be known yet."""
        if self.random_is_stale:
            self.fail_on_demand("copy", program)
            self.random, self.random_is_stale = program.random.read(), False
        return None if self.random is None else list(self.random)

    def set_random(self, state: List[int]) -> None:
        """Set the random state, both the current one and the one to load when a device is attached."""
        self.random, self.random_is_stale = list(state), False

    def _follow_model(self, program: DeviceProgram) -> None:
        """Let a program take over tensors that the model has in the place of those that it was compiled for."""
        if program.compiled.host.follow() and self.wrapping is not None:
            self.wrapping.wrap_tensors(self._user_model)
