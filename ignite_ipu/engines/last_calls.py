"""Training on what does not fill a device call, by programs of its own size."""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Optional, Tuple

import torch

from ignite_ipu.errors import OptionsError
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.module_state import Trainable
from ignite_ipu.program.options import output_mode
from ignite_ipu.program.tensors.rows import join_rows, row_count, row_range
from ignite_ipu.program.training_step import TrainingStep
from ignite_ipu.session.processes import connected
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.session import IPUSession

__all__ = ["LastCalls", "refuse_to_train_all"]


class LastCalls:
    """Trains a batch that is smaller than a device call by programs of its size, compiled once and kept.

    As many weight updates are made as its samples fill, and one of the rest, by the mean gradient of these. Weights and
    optimizer state move to the host and to the other program with each change between programs.

    Args:
        session: The session that trains; what it trains by at the first batch is the program of whole calls.

    Attributes:
        made: The arithmetic of the device calls for the last batch.
    """

    def __init__(self, session: IPUSession) -> None:
        self._session = session
        self._whole: Optional[ModelProgram] = None
        self._parts: Dict[BatchGeometry, ModelProgram] = {}
        # What each program trained when another one took its turn.
        self._trained: weakref.WeakKeyDictionary[ModelProgram, List[str]] = weakref.WeakKeyDictionary()
        self.made: List[BatchGeometry] = []

    def train(self, x: Any, y: Any) -> Tuple[Any, Any, Any, torch.Tensor]:
        """Train on one batch of at most a device call's samples, as `IPUSession.train` does on a whole one."""
        session, current = self._session, self._session.with_trainer().program
        if self._whole is None or current not in self._parts.values():
            self._whole = current
        whole, geometry, samples = self._whole, self._whole.geometry, row_count((x, y))
        if geometry is None or samples >= geometry.global_batch_size:
            self._whole = self._take_turn(whole, whole)
            result = session.train(x, y)
            self.made = [self._whole.geometry] if self._whole.geometry else []
            return result
        self.made, results, start = geometry.parts(samples), [], 0
        for part in self.made:
            stop = start + part.global_batch_size
            self._parts[part] = self._take_turn(self._parts.get(part), whole, part)
            self._parts[part].set_modes()
            results.append(session.train(*row_range((x, y), start, stop)))
            start = stop
        x, y, y_pred = join_rows([result[:3] for result in results])
        losses = [result[3] * part.global_batch_size for result, part in zip(results, self.made)]
        return x, y, y_pred, torch.stack(losses).sum() / samples

    def _take_turn(
        self, program: Optional[ModelProgram], like: ModelProgram, part: Optional[BatchGeometry] = None
    ) -> ModelProgram:
        """Train by a program from now on, or by a new one where there is none or it trains other parameters."""
        session, trained = self._session, self._session.with_trainer()
        if program is not None and trained.program is program:
            return program
        session.check_model()
        names = self._trained[trained.program] = Trainable(trained.program.step).names()
        if program is not None and program in trained.aside:
            if self._trained.get(program) == names:
                trained.resume(program)
                return program
            trained.drop_aside(program)
        step = like.step
        assert isinstance(step, TrainingStep)
        options = like.asked if part is None else _options(like.asked, part)
        return session.replace_training(step.again(), options, keep=True)


def refuse_to_train_all(options: Options, pipeline: bool) -> None:
    """Refuse options with which there are no programs for incomplete device calls.

    Args:
        options: `poptorch.Options` for training.

    Raises:
        OptionsError: The message says what contradicts `drop_last=False`.
    """
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


def _options(asked: Options, part: BatchGeometry) -> Options:
    options = asked.clone()
    options.deviceIterations(part.device_iterations)
    options.Training.gradientAccumulation(part.gradient_accumulation)
    options.replicationFactor(part.replication_factor)
    return options
