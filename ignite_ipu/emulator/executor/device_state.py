"""State of an executor's IPUs besides the program: loaded when they are taken, kept or lost when they are left."""

from __future__ import annotations

from typing import Callable, List, Optional

from ignite_ipu.emulator.device import faults
from ignite_ipu.emulator.device.device import Meter
from ignite_ipu.emulator.device.faults import Fault
from ignite_ipu.emulator.executor.observation import Observation
from ignite_ipu.emulator.executor.optimizer_tracker import OptimizerTracker
from ignite_ipu.emulator.executor.weight_copies import WeightCopies
from ignite_ipu.emulator.runtime.program import DeviceProgram


class DeviceState:
    """Weights, optimizer and random state of one executor.

    Args:
        weights: The copies of the weights.
        optimizer: The executor's; None in inference.
        observation: Who watches.
        meter: What the automatic report says was counted.
        seed: Where the random stream starts, if the options say it.

    Attributes:
        random: The random state as the host knows it; None before the first run of a model without a seed.
        random_is_stale: Whether the device's has moved on since.
        fault: What made the device stop to answer, until its IPUs are given back; None while it answers.
    """

    def __init__(
        self,
        weights: WeightCopies,
        optimizer: Optional[OptimizerTracker],
        observation: Observation,
        meter: Meter,
        seed: Optional[int],
    ) -> None:
        self._weights = weights
        self._optimizer = optimizer
        self._observation = observation
        self._meter = meter
        self.random: Optional[List[int]] = None if seed is None else [seed]
        self.random_is_stale = False
        self.fault: Optional[Fault] = None

    def check_answers(self) -> None:
        """Fail if the device has stopped to answer."""
        if self.fault is not None:
            raise self.fault.error()

    def fail_on_demand(self, kind: str, program: Optional[DeviceProgram]) -> None:
        """Fail as somebody has asked for this "call" or "copy" to, or if the device has stopped to answer."""
        self.check_answers()
        fault = faults.next_fault(kind)
        if fault is not None:
            self.fault = fault if fault.lasting and program is not None and program.attached else None
            raise fault.error()

    def load(self, program: DeviceProgram, owner: object) -> None:
        """Take the IPUs for `owner` and upload everything.

        Raises:
            Error: No IPUs are free.
        """
        self.fail_on_demand("copy", program)
        with self._observation.call("attachToDevice"):
            self._weights.fetch()
            self._weights.follow_model(program)
            program.attach(owner)
        if self.random is not None:
            program.random.write(self.random)

    def load_optimizer(self, program: DeviceProgram, download: Callable[[], object]) -> None:
        """Send an optimizer state that was loaded on the host; PopTorch sends the weights along with it.

        Args:
            download: Makes the host's weights the newest.
        """
        assert self._optimizer is not None
        download()
        self._optimizer.send_pending_state()
        program.upload()

    def read_random(self, program: DeviceProgram) -> Optional[List[int]]:
        """Return the random state, the device's if that has moved on; None if there is none to be known yet."""
        if self.random_is_stale:
            self.fail_on_demand("copy", program)
            self.random, self.random_is_stale = program.random.read(), False
        return None if self.random is None else list(self.random)

    def set_random(self, state: List[int]) -> None:
        """Set the random state, of now and of later times on a device."""
        self.random, self.random_is_stale = list(state), False

    def leave(self, program: DeviceProgram) -> None:
        """Give the IPUs back; what was on them is gone."""
        self._observation.write_report(program, self._meter)
        program.detach()
        self.fault = None
        if self._optimizer is not None:
            self._optimizer.leave_device()
