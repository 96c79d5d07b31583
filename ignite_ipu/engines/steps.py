"""The step functions behind the engines, for people who build an `Engine` of their own."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Optional, Tuple

import torch
from ignite.engine import Engine
from torch import nn

from ignite_ipu.engines.call_loader import MicroBatches
from ignite_ipu.errors import BatchError, LossError, OptionsError, RowsError
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.evaluation_step import EvaluationStep
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.micro_batches import NotJoined, holds_numbers, join, joined_or_listed, shown, signature, split
from ignite_ipu.program.step import call_model, unchanged
from ignite_ipu.program.tensors.rows import join_rows, row_count, row_range
from ignite_ipu.session.inference import Evaluation
from ignite_ipu.session.processes import connected
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.resolved import Resolved
from ignite_ipu.session.session import IPUSession
from ignite_ipu.torch_names.engines import prepare_batch as ignite_prepare_batch

if TYPE_CHECKING:
    from ignite_ipu.pipeline import PipelineRequest

PrepareBatch = Callable[..., Any]


@dataclasses.dataclass(frozen=True, eq=False)
class IPUStep:
    """Step function of an engine: called with it and a batch, it makes device calls.

    Attributes:
        run: Makes the device calls for a batch, and returns the engine's output.
        program: Gives the program.
        prepare: Makes inputs and targets of a batch, of `MicroBatches` those of all.
        compile: Compiles the program for a batch and returns it; no device call is made.
    """

    run: Callable[[Any], Any]
    program: Callable[[], ModelProgram]
    prepare: Callable[[Any], Any]
    compile: Callable[[Any], ModelProgram]

    def __call__(self, engine: Engine, batch: Any) -> Any:
        return self.run(batch)


class Preparing:
    """Calls `prepare_batch` with each micro-batch of a device call, as Ignite does with each batch."""

    def __init__(self, prepare_batch: PrepareBatch, non_blocking: bool = False) -> None:
        self._prepare_batch, self._non_blocking = prepare_batch, non_blocking

    def joined(self, batch: Any, program: Optional[ModelProgram]) -> Any:
        """Return inputs and targets of a device call, of all its micro-batches.

        Raises:
            BatchError: They differ in their shapes.
        """
        if type(batch) is not MicroBatches:
            return tuple(batch) if self._prepares_nothing(batch) else self._one(batch)
        return self.whole(batch, [], program)

    def whole(self, batch: MicroBatches, parts: List[Tuple[Any, Any]], program: Optional[ModelProgram]) -> Any:
        """Return inputs and targets of all micro-batches as `joined` does; those of each come into `parts`, if needed.

        Raises:
            BatchError: They differ in their shapes; the cause is a `NotJoined`.
        """
        known = self._known(batch)
        if known is not None:
            return known
        parts += map(self._one, batch.parts())
        try:
            x, y = (join(part, name) for part, name in zip(zip(*parts), "xy"))
        except NotJoined as error:
            raise _different(error, batch, program) from error
        return x, y

    def micro_batches(
        self, batch: Any, program: ModelProgram
    ) -> Tuple[List[Tuple[Any, Any]], Optional[Tuple[Any, Any]]]:
        """Return inputs and targets of each micro-batch, and those of all where they are joined already."""
        if type(batch) is MicroBatches:
            return list(map(self._one, batch.parts())), self._known(batch)
        x, y = self._one(batch)
        return list(_cut(x, y, program)), (x, y)

    def _one(self, batch: Any) -> Any:
        if self._prepares_nothing(batch):
            return tuple(batch)
        return self._prepare_batch(batch, device=None, non_blocking=self._non_blocking)

    def _known(self, batch: MicroBatches) -> Optional[Tuple[Any, Any]]:
        """Return inputs and targets of all, if preparing changes nothing and handlers see micro-batches as one."""
        whole = batch.joined
        if not self._prepares_nothing(whole) or len({signature(each) for each in batch}) > 1:
            return None
        x, y = whole  # type: ignore[misc]
        return x, y

    def _prepares_nothing(self, batch: Any) -> bool:
        """Return whether it is Ignite's own function with tensors, which it returns, after nine calls."""
        if self._prepare_batch is not ignite_prepare_batch or type(batch) not in (tuple, list) or len(batch) != 2:
            return False
        return type(batch[0]) is torch.Tensor and type(batch[1]) is torch.Tensor


def _cut(x: Any, y: Any, program: ModelProgram) -> Iterator[Tuple[Any, Any]]:
    """Yield the micro-batches of a ready batch: of the size that its program has, or that fills one call."""
    count = program.resolved.micro_batches
    if count == 1:
        yield x, y
        return
    try:
        samples = row_count((x, y))
    except RowsError:
        yield from split((x, y), count)
        return
    layout = program.step.layout.decided
    size = -(-samples // count) if layout is None or layout.rows is None else layout.rows // count
    if size >= samples:
        yield x, y
        return
    for start in range(0, samples, size):
        yield row_range((x, y), start, start + size)


def _different(error: NotJoined, batch: MicroBatches, program: Optional[ModelProgram]) -> BatchError:
    """Return the error for a call whose micro-batches no program takes together."""
    factors = "" if program is None else f" ({program.resolved.geometry.factors()})"
    return BatchError(
        f"The {len(batch)} micro-batches of one device call{factors} differ: {error}. One program takes all of them, "
        "with one shape. Pad them to one shape in the collate_fn or in prepare_batch, or let the batch sampler yield "
        "batches of one shape for a whole call. IPUConfig(update='host') trains each shape of an update by a program "
        "of its own."
    )


def loss_item(x: Any, y: Any, y_pred: Any, loss: torch.Tensor) -> Any:
    """Return the loss as a number: the trainer's default `output_transform`."""
    return loss.item()


def predictions_and_targets(x: Any, y: Any, y_pred: Any) -> Any:
    """Return the input of metrics: the evaluator's default `output_transform`."""
    return y_pred, y


class LastCalls:
    """Trains a batch that is smaller than a device call in calls of its size.

    As many weight updates are made as its samples fill, and one of the rest, by the mean gradient of these. `made` is
    the arithmetic of the device calls for the last batch.
    """

    def __init__(self, session: IPUSession) -> None:
        self._session = session
        self._whole: Optional[BatchGeometry] = None
        self.made: List[BatchGeometry] = []

    def train(self, x: Any, y: Any) -> Tuple[Any, Any, Any, torch.Tensor]:
        """Train on one batch of at most a device call's samples, as `IPUSession.train` does on a whole one."""
        session, samples = self._session, self._samples(x, y)
        if self._whole is None or samples is None or samples >= self._whole.global_batch_size:
            result = session.calls.train(x, y)
            if self._whole is None:
                self._refuse_sums(x, y)
            self._whole = session.trainers.required().program.geometry
            self.made = [self._whole] if self._whole else []
            return result
        self.made = self._whole.parts(samples)
        results = [session.calls.train(*call) for call in self._cut(x, y)]
        x, y, y_pred = join_rows([result[:3] for result in results])
        losses = [result[3] * part.global_batch_size for result, part in zip(results, self.made)]
        return x, y, y_pred, torch.stack(losses).sum() / samples

    def compile(self, x: Any, y: Any) -> ModelProgram:
        """Compile the programs for a batch of at most a device call's samples, and return the last."""
        samples = self._samples(x, y)
        if self._whole is None or samples is None or samples >= self._whole.global_batch_size:
            program = self._session.calls.compile(x, y)
            if self._whole is None:
                self._refuse_sums(x, y)
            self._whole = program.geometry
            return program
        self.made = self._whole.parts(samples)
        return [self._session.calls.compile(*call) for call in self._cut(x, y)][-1]

    def _samples(self, x: Any, y: Any) -> Optional[int]:
        """Return the samples of a batch; None where its rows are none, and it is one micro-batch with a program."""
        try:
            samples = row_count((x, y))
        except RowsError as error:
            if self._session.trainers.required().program.resolved.micro_batches == 1:
                return None
            raise RowsError(
                f"{error} drop_last=False cuts the samples of an incomplete device call: use drop_last=True."
            ) from error
        if self._whole is not None and samples < self._whole.global_batch_size and holds_numbers((x, y)):
            raise BatchError(
                "The last device call is incomplete, and a number of its batch differs between micro-batches, so that "
                "drop_last=False cannot cut it otherwise. Give each sample a row of it, or use drop_last=True."
            )
        return samples

    def _cut(self, x: Any, y: Any) -> Iterator[Tuple[Any, Any, BatchGeometry]]:
        start = 0
        for part in self.made:
            x_of_part, y_of_part = row_range((x, y), start, start + part.global_batch_size)
            yield x_of_part, y_of_part, part
            start += part.global_batch_size

    def _refuse_sums(self, x: Any, y: Any) -> None:
        program = self._session.trainers.required().program
        step, calls, micro_batches = program.step, program.resolved.geometry, program.resolved.micro_batches
        if calls.micro_batches == calls.device_iterations:
            return
        if step.adds_up(step.arguments(x, y, micro_batches=micro_batches), micro_batches):
            raise LossError(
                "The loss is a sum over samples, and an update averages those of its micro-batches. The rest of the "
                "data has another number of them, so drop_last=False would weigh it differently. Use a mean, or "
                "drop_last=True."
            )


def refuse_to_train_all(resolved: Resolved) -> None:
    """Refuse options with which there are no programs for incomplete device calls."""
    reasons = {
        "a pipeline, which a few samples do not fill": resolved.pipeline is not None,
        "inputReplicaGrouping": resolved.geometry.input_group_size > 1,
        "OutputMode.EveryN": resolved.output_mode == "EveryN",
        "ReductionType.Sum": resolved.options.Training.accumulation_and_replication_reduction_type.name == "Sum",
        "several processes": connected()[1] > 1,
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise OptionsError(
            f"drop_last=False trains on incomplete device calls by programs of their size, which does not go with "
            f"{', '.join(found)}. Leave one of them out. With drop_last=True, the default, a trainer logs the number "
            "of samples that it leaves out."
        )


def ipu_training_step(
    session: IPUSession,
    *,
    non_blocking: bool = False,
    prepare_batch: PrepareBatch = ignite_prepare_batch,
    output_transform: Callable[[Any, Any, Any, torch.Tensor], Any] = loss_item,
    last_calls: Optional[LastCalls] = None,
) -> IPUStep:
    """Return the step function of a trainer, for an `Engine` of your own.

    As Ignite's, it begins by putting the model in training mode; a module of the loss stays in its own.

    Args:
        session: The model's session, prepared for training.
        non_blocking: Handed to `prepare_batch`.
        prepare_batch: Called with `batch, device=None, non_blocking`; returns inputs and targets.
        output_transform: Called with `x, y, y_pred, loss`; returns the engine's `state.output`. Targets and inputs are
            the ones that belong to the predictions, the loss is the mean over the micro-batches that come back.
        last_calls: Makes the device calls instead of the session, also smaller ones.
    """
    calls = last_calls or session.calls
    preparing = Preparing(prepare_batch, non_blocking)

    def prepared(batch: Any) -> Any:
        trained = session.trainers.current
        if trained is None:
            return preparing.joined(batch, None)
        trained.program.state.set_modes()
        return preparing.joined(batch, trained.program)

    def train(batch: MicroBatches) -> Tuple[Any, Any, Any, torch.Tensor]:
        program = session.training
        if program is not None:
            program.state.set_modes()
        parts: List[Tuple[Any, Any]] = []
        try:
            x, y, y_pred, loss = calls.train(*preparing.whole(batch, parts, program))
        except BatchError as error:
            if not isinstance(error.__cause__, NotJoined) or not session.trainers.required().updates_on_host:
                raise
            predictions, loss = session.calls.train_one_by_one(parts)
            x, y = (joined_or_listed(part) for part in zip(*parts))
            return x, y, None if predictions[0] is None else joined_or_listed(predictions), loss
        x, y = shown((x, y))
        return x, y, y_pred, loss

    def run(batch: Any) -> Any:
        if type(batch) is MicroBatches:
            return output_transform(*train(batch))
        return output_transform(*calls.train(*prepared(batch)))

    return IPUStep(
        run, lambda: session.trainers.required().program, prepared, lambda batch: calls.compile(*prepared(batch))
    )


def ipu_evaluation_step(
    session: IPUSession,
    *,
    options: Optional[Callable[[], Options]] = None,
    pipeline: Optional[PipelineRequest] = None,
    non_blocking: bool = False,
    prepare_batch: PrepareBatch = ignite_prepare_batch,
    model_transform: Callable[[Any], Any] = unchanged,
    output_transform: Callable[[Any, Any, Any], Any] = predictions_and_targets,
    model_fn: Callable[[nn.Module, Any], Any] = call_model,
    half: bool = False,
    model: Optional[nn.Module] = None,
) -> IPUStep:
    """Return the step function of an evaluator, for an `Engine` of your own; it always uses the newest weights.

    As Ignite's, it begins by putting the model in evaluation mode.

    Args:
        session: The model's session.
        options: Gives the `poptorch.Options` of the inference program; derived from the trainer's when None.
        pipeline: The placement over IPUs; None takes that of the trainer.
        non_blocking: Handed to `prepare_batch`.
        prepare_batch: Called with `batch, device=None, non_blocking`; returns inputs and targets.
        model_transform: Turns the model's output into the predictions, inside the compiled program.
        output_transform: Called with `x, y, y_pred`; returns the engine's `state.output`. Inputs and targets are the
            ones that belong to the predictions.
        model_fn: Calls the model with the inputs, inside the compiled program.
        half: Whether products run in half precision, by the rule of `ignite_ipu.program.forward.half_precision`.
        model: Which part of the session's model is evaluated; None for all of it.
    """
    inference = session.inference

    def resolved() -> Resolved:
        return inference.resolved(pipeline=pipeline) if options is None else Resolved.of(options(), False, pipeline)

    return evaluation_step(
        session,
        resolved,
        non_blocking=non_blocking,
        prepare_batch=prepare_batch,
        model_transform=model_transform,
        output_transform=output_transform,
        model_fn=model_fn,
        half=half,
        model=session.model if model is None else model,
    )


def evaluation_step(
    session: IPUSession,
    resolved: Callable[[], Resolved],
    *,
    non_blocking: bool,
    prepare_batch: PrepareBatch,
    model_transform: Callable[[Any], Any],
    output_transform: Callable[[Any, Any, Any], Any],
    model_fn: Callable[[nn.Module, Any], Any],
    half: bool,
    model: nn.Module,
) -> IPUStep:
    """Return the step function of an evaluator, whose options `resolved` returns; others as `ipu_evaluation_step`."""
    module = functools.partial(EvaluationStep, model, model_fn=model_fn, model_transform=model_transform, half=half)
    evaluation = Evaluation(session.inference, module, resolved)
    preparing = Preparing(prepare_batch, non_blocking)

    def run(batch: Any) -> Any:
        program = evaluation.program()
        return output_transform(*session.inference.evaluate(program, *preparing.micro_batches(batch, program)))

    def compile(batch: Any) -> ModelProgram:
        program = evaluation.program()
        batches, _ = preparing.micro_batches(batch, program)
        pieces = next(session.inference.calls(program, [x for x, _ in batches]))
        return session.inference.compile(program, join([piece.batch for piece in pieces], "x"))

    def prepare(batch: Any) -> Any:
        return preparing.joined(batch, evaluation.program())

    return IPUStep(run, evaluation.program, prepare, compile)
