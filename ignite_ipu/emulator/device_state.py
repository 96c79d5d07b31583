"""What an executor's IPUs hold besides the program: loaded when they are taken, kept or lost when they are left."""

from __future__ import annotations

from typing import Callable, List, Optional

from ignite_ipu.emulator.device import Meter
from ignite_ipu.emulator.observation import Observation
from ignite_ipu.emulator.program import Program
from ignite_ipu.emulator.tracker import OptimizerTracker
from ignite_ipu.emulator.weight_copies import WeightCopies


class DeviceState:
    """Weights, optimizer and random state of one executor.

    Args:
        optimizer: The executor's; None in inference.
        observation: Who watches.
        meter: What the automatic report says was counted.

    Attributes:
        random: The random state as the host knows it; None while it never had one.
    """

    def __init__(
        self, weights: WeightCopies, optimizer: Optional[OptimizerTracker], observation: Observation, meter: Meter
    ) -> None:
        self._weights = weights
        self._optimizer = optimizer
        self._observation = observation
        self._meter = meter
        self.random: Optional[List[int]] = None

    def load(self, program: Program, owner: object) -> None:
        """Take the IPUs for `owner` and upload everything.

        Raises:
            Error: No IPUs are free.
        """
        with self._observation.call("attachToDevice"):
            self._weights.fetch()
            self._weights.follow_model(program)
            program.attach(owner)
        if self.random is not None:
            program.random.write(self.random)

    def load_optimizer(self, program: Program, download: Callable[[], object]) -> None:
        """Send an optimizer state that was loaded on the host; PopTorch sends the weights along with it.

        Args:
            download: Makes the host's weights the newest.
        """
        assert self._optimizer is not None
        download()
        self._optimizer.send_pending_state()
        program.upload()

    def read_random(self, program: Program) -> List[int]:
        """Return the random state: the device's, or the one it will start from."""
        if program.attached or self.random is None:
            self.random = program.random.read()
        return list(self.random)

    def write_random(self, program: Program, state: List[int]) -> None:
        """Set the random state, also of later times on a device."""
        self.random = list(state)
        if program.attached:
            program.random.write(self.random)

    def keep(self, program: Program, download: Callable[[], object]) -> None:
        """Read from the device what it alone knows.

        Args:
            download: Makes the host's weights the newest.
        """
        self.random = program.random.read()
        download()
        if self._optimizer is not None:
            self._optimizer.keep_state()

    def leave(self, program: Program) -> None:
        """Give the IPUs back; what was on them is gone."""
        self._observation.write_report(program, self._meter)
        program.detach()
        if self._optimizer is not None:
            self._optimizer.leave_device()

    def lose(self, program: Program) -> None:
        """Give up IPUs whose memory is lost: the host's weights are all there is."""
        self._weights.device_is_newer = False
        if self._optimizer is not None:
            self._optimizer.leave_device()
        program.detach()
