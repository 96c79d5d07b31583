"""`HostCall`: a repeatable call of a step on the host, with which later calls are compared."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import torch

from ignite_ipu.program.forward.weight_writes import WeightWriteGuard
from ignite_ipu.program.guards.retrace import OperatorRecorder
from ignite_ipu.program.micro_batches import first_micro_batch
from ignite_ipu.program.step import BatchStep
from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.program.tensors.trees import tensors_in
from ignite_ipu.torch_names.tensors import memory_of, version_of


class HostCall:
    """Calls a step on the host, and leaves weights and buffers as they are.

    Args:
        step: The step.
        leaves: Arguments of a device call, of which one micro-batch is kept.
        micro_batches: The number of micro-batches that they are of.

    Attributes:
        counted: Counters of batches, and by how much a micro-batch advances each: as the last call did.
        written: Names of the buffers that it wrote, without the statistics and the counters of normalisations.
        shapes: Sizes and strides of the tensors that it returned.
    """

    def __init__(self, step: BatchStep, leaves: Sequence[Any], micro_batches: int) -> None:
        self._step, self._kept = step, first_micro_batch(leaves, micro_batches)
        self._checked = step.is_tried
        self.counted: List[Tuple[torch.Tensor, int]] = []
        self.written: List[str] = []
        self.shapes: List[Tuple[Tuple[int, ...], Tuple[int, ...]]] = []

    def __call__(self, recorder: OperatorRecorder) -> Any:
        """Return the step's result, whose operators the recorder gets."""
        step = self._step
        with step.host_weights.put_into(step) as (variable, counters, buffers):
            inputs = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in self._kept]
            recorder.mark([*tensors_in(inputs), *variable])
            # Later calls are compared with the first one, operator by operator.
            recorder.writes = None if self._checked else WeightWriteGuard(step.model)
            with recorder:
                result = step.forward(*inputs)
            self._checked = True
            self.shapes = [(tuple(each.shape), each.stride()) for each in tensors_in(result)]
            self.counted = [(counter, int(now) - int(plain(counter))) for counter, now in counters]
            # PyTorch does not count the writes of normalisations to their statistics.
            self.written = [path for path, now in buffers if version_of(now) or memory_of(now) in recorder.written]
        return result
