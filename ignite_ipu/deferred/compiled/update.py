"""Device call of a weight update: its compiled form, its inputs, and the values that come back."""

from __future__ import annotations

import dataclasses
import functools
from typing import Callable, Dict, FrozenSet, List, Optional, Sequence, Tuple

import torch

from ignite_ipu.deferred.compiled.splitting import WHOLE, Split
from ignite_ipu.deferred.graph.modes_then import ModesThen
from ignite_ipu.deferred.graph.operations import CLOCK, Operation, Value, finish_all, keep_inputs, unknown_values
from ignite_ipu.deferred.graph.step_graph import MicroBatch, StepGraph
from ignite_ipu.program.tensors.rows import join_tensors

Place = Tuple[int, int]
# A value that may be read after the update: its operation and result, the number of its micro-batch, and the value.
Needed = Tuple[Place, int, Value]


@dataclasses.dataclass(frozen=True)
class CompiledUpdate:
    """Update that a program was compiled for: of `count` micro-batches of a graph, which `replicas` share.

    Attributes:
        outputs: `(operation, result)` of each value to return, beside the loss.
        numbers: The floats of the graph's arithmetic.
        variable: Which of them are inputs, because they change, and not constants.
        gradients: Whether they come back.
        processes: Number of processes over which gradients are averaged.
        split: How each micro-batch of the loop is cut into those of the device.
    """

    graph: StepGraph
    count: int
    replicas: int
    outputs: Tuple[Place, ...]
    numbers: Tuple[float, ...]
    variable: FrozenSet[int]
    modes: ModesThen
    gradients: bool
    processes: int = 1
    split: Split = WHOLE

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the device in each replica."""
        return self.count * self.split.pieces // self.replicas

    @functools.cached_property
    def returned(self) -> Dict[Place, int]:
        """Places of the values among the results; a single loss is the device's own loss."""
        places = {place: number for number, place in enumerate(self.outputs, 1)}
        return places if self.graph.loss is None else {**places, self.graph.loss: 0}

    def serves(
        self, batches: Sequence[MicroBatch], needed: Sequence[Needed], modes: ModesThen, gradients: bool
    ) -> bool:
        """Return whether this program computes an update, and brings its gradients back if it has to."""
        if self.graph is not batches[0].graph or self.count != len(batches) or self.modes != modes:
            return False
        if gradients and not self.gradients:
            return False
        for batch in batches:
            if batch.numbers != self.numbers and not self._differ_where_they_may(batch):
                return False
        return self.returned.keys() >= {place for place, _, _ in needed}

    def computes_like(self, other: CompiledUpdate) -> bool:
        """Return whether another program differs only in its results or in the numbers that may change."""
        return self.graph is other.graph and self.count == other.count and self.modes == other.modes

    def _differ_where_they_may(self, batch: MicroBatch) -> bool:
        pairs = enumerate(zip(self.numbers, batch.numbers))
        return all(mine == theirs or position in self.variable for position, (mine, theirs) in pairs)

    def extended_by(self, before: CompiledUpdate) -> CompiledUpdate:
        """Return this with the cheap abilities of the previous program."""
        if before.graph.key != self.graph.key:
            return self
        changed = {position for position, pair in enumerate(zip(before.numbers, self.numbers)) if pair[0] != pair[1]}
        return dataclasses.replace(
            self,
            outputs=tuple(sorted({*before.outputs, *self.outputs})),
            variable=before.variable | self.variable | changed,
            gradients=before.gradients or self.gradients,
        )

    def leaves(self, batches: Sequence[MicroBatch]) -> List[torch.Tensor]:
        """Return the inputs of the device call: those of the micro-batches, one after another."""
        split = self.split
        if len(batches) == 1 and split.pieces == 1:
            leaves = [tensor.contiguous() if tensor.dim() else tensor.reshape(1) for tensor in batches[0].tensors()]
        else:
            leaves = [join_tensors(split.repeated(each)) for each in zip(*map(MicroBatch.tensors, batches))]
        for position in sorted(self.variable):
            numbers = [batch.numbers[position] for batch in batches for _ in range(split.pieces)]
            leaves.append(torch.tensor(numbers, dtype=torch.float32))
        # A device call has inputs, also of a step that computes from weights alone: this one is not used.
        return leaves or [torch.zeros(len(batches) * split.pieces)]

    def settle(
        self,
        batches: Sequence[MicroBatch],
        needed: Sequence[Needed],
        outputs: Sequence[torch.Tensor],
        keeps: Optional[Callable[[Operation], bool]],
    ) -> None:
        """Resolve needed values from the results; `keeps` returns whether another update computes an operation, too."""
        for batch in batches:
            if keeps is None:
                finish_all(batch.operations)
                continue
            for operation in batch.operations:
                operation.finish(keeps(operation))
        for place, number, value in needed:
            result, size = self.returned[place], value.shape.size
            if self.split.pieces == 1:
                # It may be of one micro-batch, or not depend on the device: then it comes back once for all.
                output = outputs[result]
                value.take(output if tuple(output.shape) == size else _part(output, size, number, len(batches)))
            else:
                value.take(self.split.part(outputs[result], result, size, number, len(batches)))
            if value.consumers:
                keep_beside(value)
        CLOCK.settled = CLOCK.now


def keep_beside(value: Value) -> None:
    """Copy the inputs of the operations that read a value and are no part of its update.

    They are computed on demand, and the loop may refill its memory before that.
    """
    beside = [each for each in value.readers() if not each.done]
    if beside:
        keep_inputs(beside)


def needed_values(batches: Sequence[MicroBatch], keeps: Optional[Callable[[Operation], bool]] = None) -> List[Needed]:
    """Return the values that may be read after an update; `keeps` is as for `CompiledUpdate.settle`."""
    first, *others = batches
    device = set(first.operations).union(*[batch.operations for batch in others])
    needed = []
    for number, batch in enumerate(batches):
        for position, value, is_read in unknown_values(batch.operations, device):
            if is_read or (keeps is not None and not keeps(value.operation) and any(map(keeps, value.readers()))):
                needed.append(((position, value.index), number, value))
    return needed


def _part(output: torch.Tensor, size: Tuple[int, ...], number: int, count: int) -> torch.Tensor:
    """Return the value of one of several micro-batches."""
    if not size:
        return output[number]
    rows = output.shape[0] // count
    return output[number * rows : (number + 1) * rows]
