"""Batches of calls cut into micro-batches, and outputs of micro-batches stacked.

The leading dimension of every input is, from the outside in, `[device iteration][accumulation step][input slot][row]`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, List, Sequence, Tuple

import torch

from ignite_ipu.emulator.enums import CommGroupType, OutputMode

_NARROW = {torch.int64: torch.int32, torch.float64: torch.float32}


@dataclasses.dataclass(frozen=True)
class Batching:
    """The factors by which one call's batch is larger than a micro-batch.

    D device iterations, A steps of accumulation and R replicas, of which groups of G read the same input;
    `return_period` is the N of `OutputMode.EveryN`.
    """

    device_iterations: int
    gradient_accumulation: int
    replication_factor: int
    group_size: int
    group_type: CommGroupType
    output_mode: OutputMode
    return_period: int

    @property
    def slots(self) -> int:
        """Distinct inputs that the replicas read at the same moment: R // G."""
        return self.replication_factor // self.group_size

    @property
    def factor(self) -> int:
        """Micro-batches in each input: D * A * (R // G)."""
        return self.device_iterations * self.gradient_accumulation * self.slots

    @property
    def micro_batches(self) -> int:
        """Forward passes in one call: D * A * R."""
        return self.device_iterations * self.gradient_accumulation * self.replication_factor

    def slot_of(self, replica: int) -> int:
        if self.group_type is CommGroupType.Orthogonal:
            return replica % self.slots
        return replica // self.group_size

    def micro_batch_shape(self, name: str, tensor: torch.Tensor) -> Tuple[int, ...]:
        size = tensor.shape[0] if tensor.dim() else 1
        if size % self.factor:
            raise AssertionError(
                f"Invalid batch dimension: In the input {name} of shape {tuple(tensor.shape)}, the batch dimension "
                f"({size}) must be a multiple of Options.deviceIterations ({self.device_iterations}) * "
                f"Options.replicationFactor ({self.replication_factor}) / inputReplicaGrouping ({self.group_size}) * "
                f"Options.Training.gradientAccumulation ({self.gradient_accumulation}) = {self.factor}. "
                "Change the DataLoader's batch_size, or set drop_last=True."
            )
        return (size // self.factor, *tensor.shape[1:]) if tensor.dim() else ()

    def cut(self, inputs: Sequence[torch.Tensor]) -> List[Tuple[torch.Tensor, ...]]:
        """Return the micro-batches of one call, in the order [D][A][slot]; each a tuple with one tensor an input."""
        factor = self.factor
        if factor == 1:
            return [tuple(inputs)]
        if not inputs:
            return [()] * factor
        return list(zip(*[tensor.chunk(factor) for tensor in inputs]))

    @property
    def returned(self) -> int:
        if self.output_mode in (OutputMode.Final, OutputMode.Sum):
            return self.replication_factor
        return self.micro_batches // (self.return_period if self.output_mode is OutputMode.EveryN else 1)

    def keeps(self, iteration: int, step: int) -> bool:
        """Return whether the outputs of this step are returned (every step's are needed for a sum)."""
        if self.output_mode in (OutputMode.All, OutputMode.Sum):
            return True
        if self.output_mode is OutputMode.EveryN:
            return (iteration + 1) % self.return_period == 0
        return iteration == self.device_iterations - 1 and step == self.gradient_accumulation - 1

    def stack(self, collected: List[List[torch.Tensor]]) -> torch.Tensor:
        """Put one output's micro-batches, `collected[step][replica]`, together in contiguous memory of its own.

        Traced shape (s0, ...) becomes (m * s0, ...), a scalar (m,), for m values; one value keeps its shape.
        """
        if self.output_mode is OutputMode.Sum and len(collected) > 1:
            collected = [[torch.stack(steps).sum(0, dtype=steps[0].dtype) for steps in zip(*collected)]]
        values = [value for step in collected for value in step]
        if len(values) == 1:
            whole = values[0].clone(memory_format=torch.contiguous_format)
        else:
            whole = torch.cat([value.reshape(1) for value in values] if values[0].dim() == 0 else values).contiguous()
        return narrowed(whole)


def narrowed(tensor: torch.Tensor) -> torch.Tensor:
    """Return an output as the host sees it: the device knows neither int64 nor float64."""
    dtype = _NARROW.get(tensor.dtype)
    return tensor if dtype is None else tensor.to(dtype)


def from_options(options: Any) -> Batching:
    """Return the batching that an executor's options describe (their output mode is resolved)."""
    return Batching(
        device_iterations=options.device_iterations,
        gradient_accumulation=options.Training.gradient_accumulation,
        replication_factor=options.replication_factor,
        group_size=options.input_group_size,
        group_type=CommGroupType(options.input_cgt),
        output_mode=OutputMode(options.output_mode),
        return_period=options.output_return_period,
    )
