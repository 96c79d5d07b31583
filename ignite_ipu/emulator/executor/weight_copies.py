"""The two copies of a wrapped model's weights, the host's and the device's, and the ways between them."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Sequence

import torch
from torch import nn

from ignite_ipu.emulator.errors import python_error
from ignite_ipu.emulator.executor.observation import Observation
from ignite_ipu.emulator.executor.optimizer_tracker import OptimizerTracker
from ignite_ipu.emulator.runtime.program import DeviceProgram
from ignite_ipu.emulator.values.wrapping import Wrapping, fetch, holder_of, is_wrapped


class WeightCopies:
    """Parameters and buffers of one executor's model.

    Args:
        user_model: The user's model.
        model: What is traced of it.
        observation: Who watches the copies.

    Attributes:
        wrapping: What makes reading the user's weights fetch them; None in inference.
        device_is_newer: Whether the device may have changed its copy since the two were last the same.
        downloads: How often the host's copy has been written.
    """

    def __init__(self, user_model: nn.Module, model: nn.Module, observation: Observation) -> None:
        self._user_model = user_model
        self._model = model
        self._observation = observation
        self._uploaded: Optional[int] = 0
        self.wrapping: Optional[Wrapping] = None
        self.device_is_newer = False
        self.downloads = 0

    def to_host(self, program: DeviceProgram) -> None:
        """Download the device's copy into the host's tensors."""
        # Off while the tensors are written to, which would ask for them again.
        newer, self.device_is_newer = self.device_is_newer, False
        try:
            self.follow_model(program)
            with self._observation.call("copyWeightsToHost"):
                program.download()
        except BaseException:
            self.device_is_newer = newer
            raise
        self.downloads += 1

    def to_device(self, program: DeviceProgram, optimizer: Optional[OptimizerTracker]) -> None:
        """Upload the host's copy, after the state that an optimizer loses with it."""
        with self._observation.call("copyWeightsToDevice"):
            if optimizer is not None:
                optimizer.before_weight_upload()
            self.fetch()
            self.follow_model(program)
            program.upload()

    def buffers_to_device(self, program: DeviceProgram, names: Sequence[str]) -> None:
        """Upload the host's copy of some buffers.

        Raises:
            Error: There are none, or one of them is not on the device.
        """
        if not names:
            raise python_error(
                "No named buffers marked as updatable: list them with Options.updatableNamedBuffers before compiling."
            )
        self.device_is_newer = False
        self.fetch()
        own: Dict[str, torch.Tensor] = dict(self._model.named_buffers())
        program.upload_buffers({name: own[name] for name in names})

    def fetch(self) -> None:
        """Have the host's weights be the newest: whoever reads a wrapped parameter makes its trainer download."""
        for tensor in (*self._model.parameters(), *self._model.buffers()):
            fetch(tensor)

    def refresh(self, upload: Callable[[], None]) -> None:
        """Call `upload` if the training executor of the same model has changed the weights since the last time."""
        if not is_wrapped(self._model):
            return
        trainer: Any = holder_of(self._model)
        if trainer is not None:
            trainer.copyWeightsToHostIfNeeded()
        downloads = None if trainer is None else trainer._weight_copies.downloads
        if downloads != self._uploaded:
            upload()
            self._uploaded = downloads

    def follow_model(self, program: DeviceProgram) -> None:
        """Let a program take over tensors that the model has in the place of those that it was compiled for."""
        if program.follow_model() and self.wrapping is not None:
            self.wrapping.wrap_tensors(self._user_model)

    def wrap_again(self) -> None:
        """Make reading the weights fetch them again, after an unwrapping."""
        if self.wrapping is not None and not is_wrapped(self._user_model):
            self.wrapping.wrap_tensors(self._user_model)
