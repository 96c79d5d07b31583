"""Calls of a loaded program, and what the last one left."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Sequence

import torch

from ignite_ipu.emulator import latency
from ignite_ipu.emulator.device import Meter
from ignite_ipu.emulator.program import Program
from ignite_ipu.emulator.transfer import Transfer


class DeviceCalls:
    """One executor's calls.

    Args:
        training: Whether each device iteration updates the weights.
        meter: Counts the calls.

    Attributes:
        transfer: Takes the inputs to the device.
        times: When the last call's tensors crossed.
    """

    def __init__(self, training: bool, meter: Meter) -> None:
        self._training = training
        self._meter = meter
        self._anchored: Dict[str, torch.Tensor] = {}
        self.transfer = Transfer()
        self.times = latency.Record()

    def run(self, program: Program, inputs: List[torch.Tensor], given: Sequence[torch.Tensor]) -> Any:
        """Run on inputs that are on the device, and return what forward returned.

        Args:
            given: The caller's tensors, which get what forward writes to its inputs.
        """
        graph, arithmetic = program.graph, program.batching
        started = time.perf_counter()
        outputs = program.run(inputs)
        if graph.written_inputs:
            self.transfer.write_back(graph.written_inputs, inputs, given)
        seconds = time.perf_counter() - started
        self._anchored = program.anchored(outputs)
        steps = (0, 0) if program.synthetic else (arithmetic.micro_batches, arithmetic.returned)
        self.times.set(len(graph.inputs), steps[0], len(outputs), steps[1], seconds)
        self._meter.add_call(arithmetic.micro_batches, arithmetic.device_iterations if self._training else 0)
        return program.returned(outputs)

    def anchored(self, short_name: str) -> torch.Tensor:
        """Return an anchored tensor of the last call.

        Raises:
            AssertionError: There is none of that name.
        """
        if short_name not in self._anchored:
            raise AssertionError(
                f"No tensor with name {short_name!r}: known after the last run are {sorted(self._anchored)}. "
                "Anchors are set with Options.anchorTensor before wrapping."
            )
        return self._anchored[short_name]
