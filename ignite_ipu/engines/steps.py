"""The step functions behind the engines, for people who build an `Engine` of their own."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch
from ignite.engine import Engine
from ignite.engine import _prepare_batch as _ignite_prepare_batch
from torch import nn

from ignite_ipu.engines.last_calls import LastCalls
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.step import EvaluationStep
from ignite_ipu.session.inference import Evaluation
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.session import IPUSession

if TYPE_CHECKING:
    from ignite_ipu.pipeline import PipelineRequest

__all__ = ["IPUStep", "ipu_evaluation_step", "ipu_training_step"]

PrepareBatch = Callable[..., Any]


@dataclasses.dataclass(frozen=True, eq=False)
class IPUStep:
    """Step function of an engine: called with it and a batch, it makes device calls.

    Attributes:
        run: Makes the device calls for a batch, and returns the engine's output.
        program: Gives the program.
        prepare: Makes inputs and targets of a batch.
        compiled_for: Compiles the program for inputs and targets and returns it; no device call is made.
    """

    run: Callable[[Any], Any]
    program: Callable[[], ModelProgram]
    prepare: Callable[[Any], Any]
    compiled_for: Callable[[Any, Any], ModelProgram]

    def compile(self, batch: Any) -> ModelProgram:
        """Compile the program for a batch and return it; no device call is made."""
        return self.compiled_for(*self.prepare(batch))

    def __call__(self, engine: Engine, batch: Any) -> Any:
        """Return the engine's output for a batch."""
        return self.run(batch)


def call_model(model: nn.Module, x: Any) -> Any:
    """Call the model with its inputs: the default `model_fn`."""
    return model(x)


def unchanged(output: Any) -> Any:
    """Return the output as it is: the default `model_transform`."""
    return output


def loss_item(x: Any, y: Any, y_pred: Any, loss: torch.Tensor) -> Any:
    """Return the loss as a number: the trainer's default `output_transform`."""
    return loss.item()


def predictions_and_targets(x: Any, y: Any, y_pred: Any) -> Any:
    """Return what metrics take: the evaluator's default `output_transform`."""
    return y_pred, y


def ipu_training_step(
    session: IPUSession,
    *,
    non_blocking: bool = False,
    prepare_batch: PrepareBatch = _ignite_prepare_batch,
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
    calls = last_calls or session

    def prepared(batch: Any) -> Any:
        program = session.training
        if program is not None:
            program.set_modes()
        if prepare_batch is _ignite_prepare_batch and type(batch) in (tuple, list) and len(batch) == 2:
            x, y = batch
            if type(x) is torch.Tensor and type(y) is torch.Tensor:
                return x, y  # which is what Ignite's function returns, after nine calls
        return prepare_batch(batch, device=None, non_blocking=non_blocking)

    def run(batch: Any) -> Any:
        x, y = prepared(batch)
        return output_transform(*calls.train(x, y))

    return IPUStep(run, lambda: session.with_trainer().program, prepared, calls.compile)


def ipu_evaluation_step(
    session: IPUSession,
    *,
    options: Optional[Callable[[], Options]] = None,
    pipeline: Optional[PipelineRequest] = None,
    non_blocking: bool = False,
    prepare_batch: PrepareBatch = _ignite_prepare_batch,
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
        pipeline: What spreads the model over IPUs; the trainer's layers are put where they train when None.
        non_blocking: Handed to `prepare_batch`.
        prepare_batch: Called with `batch, device=None, non_blocking`; returns inputs and targets.
        model_transform: Turns the model's output into the predictions, inside the compiled program.
        output_transform: Called with `x, y, y_pred`; returns the engine's `state.output`. Inputs and targets are the
            ones that belong to the predictions.
        model_fn: Calls the model with the inputs, inside the compiled program.
        half: Whether products run in half precision, by the rule of `ignite_ipu.program.forward.half_precision`.
        model: Which part of the session's model is evaluated; None for all of it.
    """
    evaluated = session.model if model is None else model
    module = functools.partial(EvaluationStep, evaluated, model_fn=model_fn, model_transform=model_transform, half=half)
    evaluation = Evaluation(session.inference, module, options or session.inference.options, pipeline)
    prepare = functools.partial(prepare_batch, device=None, non_blocking=non_blocking)

    def run(batch: Any) -> Any:
        program = evaluation.program()
        x, y = prepare(batch)
        return output_transform(*session.inference.evaluate(program, x, y))

    def compile(x: Any, y: Any) -> ModelProgram:
        return session.inference.compile(evaluation.program(), x)

    return IPUStep(run, evaluation.program, prepare, compile)
