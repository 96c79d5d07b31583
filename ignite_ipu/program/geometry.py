"""The batching arithmetic of an IPU: how many samples a micro-batch, a weight update and a device call have.

One call of a compiled model consumes the rows of its inputs in the order [D][A][R][B]: device iteration, accumulation
step, replica, row of the micro-batch. Each device iteration ends in one weight update.
"""

from __future__ import annotations

import dataclasses
from typing import Any, List, NamedTuple

from ignite_ipu.poptorch_types import Options


class UnevenCall(NamedTuple):
    """Counts of an update by micro-batches of several shapes, by the names they have in a `BatchGeometry`."""

    updates_per_call: int
    input_micro_batches: int
    global_batch_size: int


@dataclasses.dataclass(frozen=True)
class BatchGeometry:
    """The factors between a sample and a device call.

    Attributes:
        micro_batch_size: B, samples that one replica sees in one forward pass.
        device_iterations: D, weight updates in one call.
        gradient_accumulation: A, micro-batches of one replica whose gradients make up one update.
        replication_factor: R, replicas that work side by side.
        input_group_size: G, replicas that read the same samples; 1 unless replicas are grouped.
        processes: P, processes that make each update together, each with calls of its own samples.

    Raises:
        ValueError: A factor is no positive integer, or groups do not divide the replicas.
    """

    micro_batch_size: int
    device_iterations: int = 1
    gradient_accumulation: int = 1
    replication_factor: int = 1
    input_group_size: int = 1
    processes: int = 1

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{field.name} must be a positive integer, got {value!r}.")
        if self.replication_factor % self.input_group_size:
            raise ValueError(
                f"input_group_size ({self.input_group_size}) must divide replication_factor "
                f"({self.replication_factor})."
            )

    @classmethod
    def from_options(cls, options: Options, micro_batch_size: int) -> BatchGeometry:
        """Return the geometry that a `poptorch.Options` describes for micro-batches of `micro_batch_size` samples."""
        return cls(
            micro_batch_size=micro_batch_size,
            device_iterations=options.device_iterations,
            gradient_accumulation=options.Training.gradient_accumulation,
            replication_factor=options.replication_factor,
            input_group_size=options.input_group_size,
            processes=options.Distributed.numProcesses,
        )

    @property
    def input_slots(self) -> int:
        """Different micro-batches that the replicas read at the same moment: R // G."""
        return self.replication_factor // self.input_group_size

    @property
    def input_micro_batches(self) -> int:
        """Micro-batches in the inputs of one call: D * A * (R // G)."""
        return self.device_iterations * self.gradient_accumulation * self.input_slots

    @property
    def micro_batches(self) -> int:
        """Forward passes in one call: D * A * R."""
        return self.device_iterations * self.gradient_accumulation * self.replication_factor

    @property
    def accumulated_batch_size(self) -> int:
        """Samples that one process has of those that make one weight update: B * A * (R // G)."""
        return self.micro_batch_size * self.gradient_accumulation * self.input_slots

    @property
    def update_batch_size(self) -> int:
        """Samples whose mean gradient makes one weight update, in all processes: B * A * (R // G) * P."""
        return self.accumulated_batch_size * self.processes

    @property
    def global_batch_size(self) -> int:
        """Samples that one call of one process consumes: B * D * A * (R // G)."""
        return self.accumulated_batch_size * self.device_iterations

    @property
    def updates_per_call(self) -> int:
        """Weight updates that one call makes: D."""
        return self.device_iterations

    def accumulating(self, steps: int) -> BatchGeometry:
        """Return the calls of as many samples in which an update has another number of micro-batches."""
        size = self.micro_batch_size * self.gradient_accumulation // steps
        return dataclasses.replace(self, micro_batch_size=size, gradient_accumulation=steps)

    def parts(self, samples: int) -> List[BatchGeometry]:
        """Return the calls that train on fewer samples than one call of this geometry does.

        The first makes as many weight updates as the samples fill. The second makes the update with the rest, in
        micro-batches of one size, the largest that is not above this geometry's.
        """
        updates, rest = divmod(samples, self.accumulated_batch_size)
        found = [dataclasses.replace(self, device_iterations=updates)] if updates else []
        if rest:
            replicas = 1 if rest % self.replication_factor else self.replication_factor
            each = rest // replicas
            size = max(size for size in range(1, self.micro_batch_size + 1) if each % size == 0)
            found.append(BatchGeometry(size, 1, each // size, replicas))
        return found

    def steps_per_epoch(self, samples: int, drop_last: bool = True) -> int:
        """Return the device calls in one pass over `samples` samples; an incomplete last one counts unless dropped."""
        return samples // self.global_batch_size if drop_last else -(-samples // self.global_batch_size)

    def updates_per_epoch(self, samples: int, drop_last: bool = True) -> int:
        """Return the weight updates in one pass over `samples` samples, that by an incomplete rest unless dropped."""
        calls, rest = divmod(samples, self.global_batch_size)
        return calls * self.updates_per_call + (0 if drop_last else -(-rest // self.accumulated_batch_size))

    def samples_dropped(self, samples: int) -> int:
        """Return how many of `samples` samples are left over when the last, incomplete call is dropped."""
        return samples % self.global_batch_size

    def samples_padded(self, samples: int) -> int:
        """Return how many rows repeat a sample when the last call is filled up instead."""
        return -samples % self.global_batch_size

    def returned_micro_batches(self, output_mode: Any, return_period: int = 1) -> List[int]:
        """Return which micro-batches of the inputs an output mode returns outputs of, in the order it stacks them.

        Args:
            output_mode: A `poptorch.OutputMode` or the name of one: `All`, `Final` or `EveryN`.
            return_period: N of `EveryN`.

        Returns:
            Positions in the inputs' [D][A][R // G] order; replicas that share their input repeat its position.

        Raises:
            ValueError: The mode returns no micro-batch's own outputs (`Sum`), or is not resolved (`Default`).
        """
        name = getattr(output_mode, "name", output_mode)
        d, a, r = self.device_iterations, self.gradient_accumulation, self.replication_factor
        if name == "All":
            iterations, first_step = range(d), 0
        elif name == "Final":
            iterations, first_step = range(d - 1, d), a - 1
        elif name == "EveryN":
            iterations, first_step = range(return_period - 1, d, return_period), 0
        else:
            raise ValueError(
                f"Output mode {name} returns the outputs of no particular micro-batch, so no labels belong to them; "
                "use All, Final or EveryN where predictions meet labels."
            )
        return [
            (iteration * a + step) * self.input_slots + replica // self.input_group_size
            for iteration in iterations
            for step in range(first_step, a)
            for replica in range(r)
        ]

    def factors(self, between: str = " x ") -> str:
        """Return the factors of a call that options say, with their names there."""
        return (
            f"deviceIterations {self.device_iterations}{between}gradientAccumulation {self.gradient_accumulation}"
            f"{between}replicationFactor {self.replication_factor}"
        )

    def explain(self) -> str:
        """Return the arithmetic of one call in a sentence."""
        replicas = f"{self.replication_factor} (replicationFactor)"
        if self.input_group_size > 1:
            replicas = f"{self.input_slots} (replicationFactor {self.replication_factor} in groups of "
            replicas += f"{self.input_group_size})"
        text = (
            f"{self.micro_batch_size} (micro-batch) x {self.gradient_accumulation} (gradientAccumulation) x {replicas} "
        )
        text += f"x {self.processes} (processes) " if self.processes > 1 else ""
        text += (
            f"= {self.update_batch_size} samples per weight update; x {self.device_iterations} (deviceIterations) = "
        )
        if self.processes == 1:
            return f"{text}{self.global_batch_size} samples per device call"
        together = self.global_batch_size * self.processes
        return f"{text}{together} samples per device call, {self.global_batch_size} of them in each process"

    def explain_epoch(self, samples: int, drop_last: bool = True) -> str:
        """Return the arithmetic of one pass over `samples` samples in a sentence."""
        steps = self.steps_per_epoch(samples, drop_last)
        share = "samples of this process" if self.processes > 1 else "samples"
        text = f"{samples} {share} / {self.global_batch_size} per device call = {steps} steps per epoch"
        if drop_last:
            return f"{text}, {self.samples_dropped(samples)} samples dropped"
        padded = self.samples_padded(samples)
        return f"{text}, the last with {self.global_batch_size - padded} samples" if padded else text
