"""Calls of a loaded program, and what the last one left."""

from __future__ import annotations

import time
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import torch

from ignite_ipu.emulator.device.device import Meter
from ignite_ipu.emulator.errors import python_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.runtime.program import DeviceProgram

_INT32 = torch.iinfo(torch.int32)


class DeviceCalls:
    """One executor's calls, which the meter counts; in training each device iteration updates the weights."""

    def __init__(self, training: bool, meter: Meter) -> None:
        self._training = training
        self._meter = meter
        self._anchored: Dict[str, torch.Tensor] = {}
        self._non_contiguous_seen = False
        self.times = Times()

    def run(self, program: DeviceProgram, inputs: List[torch.Tensor], given: Sequence[torch.Tensor]) -> Any:
        """Run on inputs that are on the device; the tensors `given` by the caller get what forward writes to them."""
        graph, batching = program.graph, program.batching
        started = time.perf_counter()
        outputs = program.run(inputs)
        for place in graph.written_inputs:
            if inputs[place].data_ptr() != given[place].data_ptr():
                given[place].detach().copy_(inputs[place])
        seconds = time.perf_counter() - started
        self._anchored = program.anchored(outputs)
        steps, returned = (0, 0) if program.synthetic else (batching.micro_batches, batching.returned)
        self.times = Times(len(graph.inputs), steps, len(outputs), returned, seconds)
        self._meter.add_call(batching.micro_batches, batching.device_iterations if self._training else 0)
        return program.returned(outputs)

    def anchored(self, short_name: str) -> torch.Tensor:
        if short_name not in self._anchored:
            raise AssertionError(
                f"No tensor with name {short_name!r}: known after the last run are {sorted(self._anchored)}. "
                "Anchors are set with Options.anchorTensor before wrapping."
            )
        return self._anchored[short_name]

    def to_device(self, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Return the inputs as the graph takes them: detached, narrowed from float64 and contiguous."""
        return [self._sent(name, tensor) for name, tensor in zip(names, tensors)]

    def _sent(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            tensor = tensor.detach()
        if tensor.dtype is torch.float64:
            return tensor.to(torch.float32, memory_format=torch.contiguous_format)
        if tensor.dtype is torch.int64:
            # PopTorch would cut such values silently.
            low, high = (int(value) for value in torch.aminmax(tensor))
            if low < _INT32.min or high > _INT32.max:
                raise python_error(
                    f"Input {name} of torch.int64 holds values from {low} to {high}: the device's integers are int32 "
                    f"({_INT32.min} to {_INT32.max})."
                )
        if tensor.is_contiguous():
            return tensor
        if not self._non_contiguous_seen:
            logger.warning("At least one input tensor is not contiguous (%s): it is copied on every call.", name)
            self._non_contiguous_seen = True
        return tensor.contiguous()


Events = List[List[float]]
Latency = Tuple[float, float, float]


class Times(NamedTuple):
    """The time stamps of an executor's last call, in seconds since it began.

    Host and device share their memory here, so that crossing takes no time: all inputs are there when the call begins,
    and all outputs when it ends.
    """

    inputs: int = 0
    steps: int = 0  # Micro-batches of each input that cross; none where data are synthetic.
    outputs: int = 0
    returned: int = 0  # The same of each output.
    seconds: float = 0.0

    def counters(self) -> Dict[str, Events]:
        """Return the time stamps by event, then tensor, then step."""
        begin: Events = [[0.0] * self.steps for _ in range(self.inputs)] or [[]]
        end: Events = [[self.seconds] * self.returned for _ in range(self.outputs)] or [[]]
        return {"input": begin, "input_complete": begin, "output": end, "output_complete": end}

    def latency(self, crossing: bool) -> Latency:
        """Return minimum, maximum and mean seconds of a step: of crossing alone, or from its input to its output."""
        has_data = self.inputs and self.steps and self.outputs and self.returned
        seconds = self.seconds if has_data and not crossing else 0.0
        return seconds, seconds, seconds
