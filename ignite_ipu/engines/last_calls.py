"""Training on what does not fill a device call, by programs of its own size."""

from __future__ import annotations

from typing import Any, Iterator, List, Optional, Tuple

import torch

from ignite_ipu.errors import LossError, OptionsError
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.options import output_mode
from ignite_ipu.program.tensors.rows import join_rows, row_count, row_range
from ignite_ipu.session.processes import connected
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.session import IPUSession

__all__ = ["LastCalls", "refuse_to_train_all"]


class LastCalls:
    """Trains a batch that is smaller than a device call in calls of its size.

    As many weight updates are made as its samples fill, and one of the rest, by the mean gradient of these.

    Attributes:
        made: The arithmetic of the device calls for the last batch.
    """

    def __init__(self, session: IPUSession) -> None:
        self._session = session
        self._whole: Optional[BatchGeometry] = None
        self.made: List[BatchGeometry] = []

    def train(self, x: Any, y: Any) -> Tuple[Any, Any, Any, torch.Tensor]:
        """Train on one batch of at most a device call's samples, as `IPUSession.train` does on a whole one."""
        session, samples = self._session, row_count((x, y))
        if self._whole is None or samples >= self._whole.global_batch_size:
            result = session.train(x, y)
            if self._whole is None:
                self._refuse_sums(x, y)
            self._whole = session.with_trainer().program.geometry
            self.made = [self._whole] if self._whole else []
            return result
        self.made = self._whole.parts(samples)
        results = [session.train(*call) for call in self._cut(x, y)]
        x, y, y_pred = join_rows([result[:3] for result in results])
        losses = [result[3] * part.global_batch_size for result, part in zip(results, self.made)]
        return x, y, y_pred, torch.stack(losses).sum() / samples

    def compile(self, x: Any, y: Any) -> ModelProgram:
        """Compile the programs for a batch of at most a device call's samples, and return the last."""
        if self._whole is None or row_count((x, y)) >= self._whole.global_batch_size:
            program = self._session.compile(x, y)
            if self._whole is None:
                self._refuse_sums(x, y)
            self._whole = program.geometry
            return program
        self.made = self._whole.parts(row_count((x, y)))
        return [self._session.compile(*call) for call in self._cut(x, y)][-1]

    def _cut(self, x: Any, y: Any) -> Iterator[Tuple[Any, Any, BatchGeometry]]:
        start = 0
        for part in self.made:
            x_of_part, y_of_part = row_range((x, y), start, start + part.global_batch_size)
            yield x_of_part, y_of_part, part
            start += part.global_batch_size

    def _refuse_sums(self, x: Any, y: Any) -> None:
        program = self._session.with_trainer().program
        if program.calls.micro_batches == program.calls.device_iterations:
            return
        if program.step.adds_up(program.arguments(x, y), program.micro_batches):
            raise LossError(
                "The loss is a sum over samples, and an update averages those of its micro-batches, of which the rest "
                "of the data has another number: drop_last=False would weigh it otherwise. Use a mean, or "
                "drop_last=True."
            )


def refuse_to_train_all(options: Options, pipeline: bool) -> None:
    """Refuse options with which there are no programs for incomplete device calls."""
    reasons = {
        "a pipeline, which a few samples do not fill": pipeline,
        "inputReplicaGrouping": options.input_group_size > 1,
        "OutputMode.EveryN": output_mode(options, training=True).name == "EveryN",
        "ReductionType.Sum": options.Training.accumulation_and_replication_reduction_type.name == "Sum",
        "several processes": connected()[1] > 1,
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise OptionsError(
            f"drop_last=False trains on incomplete device calls by programs of their size, which does not go with "
            f"{', '.join(found)}. Leave one of them out; with drop_last=True, the default, a trainer says how many "
            "samples it leaves out."
        )
