"""Averages over an evaluation that are summed on the device, so that a few numbers come back instead of predictions."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, Union

import torch
from ignite.metrics import Metric
from ignite.metrics.metric import reinit__is_reduced, sync_all_reduce
from torch import nn

from ignite_ipu.engines.engine import IPUEngine
from ignite_ipu.engines.loaders import Loaders
from ignite_ipu.engines.steps import IPUStep, Preparing
from ignite_ipu.errors import BatchError, RowsError
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.config import Configuration, IPUConfig
from ignite_ipu.program.guarded_trace import guarded
from ignite_ipu.program.micro_batches import join
from ignite_ipu.program.refusal_frames import brief_refusals
from ignite_ipu.program.step import BatchStep, call_model, unchanged
from ignite_ipu.program.tensors.rows import row_count
from ignite_ipu.session.inference import Evaluation, Piece
from ignite_ipu.session.processes import unwrapped
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.session import IPUSession
from ignite_ipu.torch_names.engines import prepare_batch as ignite_prepare_batch

PerSample = Callable[[Any, Any], torch.Tensor]
_SAMPLES = "samples"


class AveragesStep(BatchStep):
    """The module that is compiled for averages: it returns the sum of each over the samples of a micro-batch."""

    def __init__(
        self,
        model: nn.Module,
        averages: Mapping[str, PerSample],
        model_fn: Callable[[nn.Module, Any], Any] = call_model,
    ) -> None:
        super().__init__(model, ("x", "y", "counted"), model_fn, unchanged)
        self.averages = dict(averages)

    def computes_like(self, other: BatchStep) -> bool:
        return super().computes_like(other) and self.averages == getattr(other, "averages", None)

    def again(self) -> AveragesStep:
        """Return a step that computes the same, for batches of a layout of its own."""
        return AveragesStep(self.model, self.averages, self.model_fn)

    def forward(self, *leaves: Any) -> Any:
        """Return the sums, shape `(1, len(averages))`, for the leaves of `(x, y, counted)`."""
        x, y, counted = self.layout.batch(leaves)
        with guarded(self):
            y_pred = self.call_model(x)
            self.computed.mark()
            sums = []
            for name, function in self.averages.items():
                values = function(y_pred, y)
                if tuple(values.shape) != tuple(counted.shape):
                    raise BatchError(
                        f"The average {name!r} got values of shape {tuple(values.shape)} for "
                        f"{counted.shape[0]} samples. Return one number per sample, for example "
                        "F.cross_entropy(y_pred, y, reduction='none')."
                    )
                sums.append((values.float() * counted).sum())
            return self.written.beside(torch.stack(sums).unsqueeze(0), self.model)


class _Mean(Metric):
    """The mean of sums that were taken elsewhere."""

    def __init__(self, name: str) -> None:
        super().__init__(output_transform=lambda output: (output[name], output[_SAMPLES]))

    @reinit__is_reduced
    def reset(self) -> None:
        self._sum = torch.tensor(0.0, dtype=torch.float64)
        self._samples = 0

    @reinit__is_reduced
    def update(self, output: Tuple[float, int]) -> None:
        self._sum += output[0]
        self._samples += output[1]

    @sync_all_reduce("_sum", "_samples")
    def compute(self) -> float:
        return float(self._sum) / self._samples


@brief_refusals
def create_ipu_averages_evaluator(
    model: nn.Module,
    averages: Mapping[str, PerSample],
    *,
    prepare_batch: Callable[..., Any] = ignite_prepare_batch,
    model_fn: Callable[[nn.Module, Any], Any] = call_model,
    config: Configuration = None,
    options: Optional[Options] = None,
    device_iterations: Optional[int] = None,
    replication_factor: Union[int, str, None] = None,
) -> IPUEngine:
    """Create an evaluator whose metrics are averages that the device sums up, for few bytes and little host time.

    Metrics that are means over samples can be had this way: accuracy, losses, mean errors. `state.output` holds the
    sums of one call and `samples`, how many samples they are of; predictions do not come back::

        evaluator = create_ipu_averages_evaluator(
            model,
            {
                "accuracy": lambda y_pred, y: (y_pred.argmax(1) == y).float(),
                "loss": lambda y_pred, y: F.cross_entropy(y_pred, y, reduction="none"),
            },
        )

    Args:
        model: The model, on the CPU; the newest weights are used, wherever they are.
        averages: By name, a function of predictions and targets that returns one number per sample; it is compiled.
        prepare_batch: Called with `batch, device=None, non_blocking` on the host; returns inputs and targets.
        model_fn: Calls the model with the inputs, inside the compiled program.
        config, options, device_iterations, replication_factor: As for `create_ipu_evaluator`. The output mode is Sum.

    Raises:
        ValueError: There are no averages, or one is called `samples`.
        OptionsError, SessionError: The options or the model cannot.
    """
    if not averages or _SAMPLES in averages:
        raise ValueError(f"Give at least one average, none of them named {_SAMPLES!r}; got {list(averages)}.")
    settings = IPUConfig.of(
        config, options=options, device_iterations=device_iterations, replication_factor=replication_factor
    )
    settings.refuse_all_but(
        ("options", "device_iterations", "replication_factor"), "averages are computed without it. Leave it out."
    )
    session = IPUSession.of(unwrapped(model))
    summing = dataclasses.replace(settings, output_mode="Sum")
    made: Optional[Loaders] = None

    def loaders() -> Loaders:
        nonlocal made
        resolved = session.inference.resolved(summing)
        if made is None or made.resolved is not resolved:
            made = Loaders(resolved)
        return made

    module = functools.partial(AveragesStep, session.model, averages, model_fn)
    evaluation = Evaluation(session.inference, module, lambda: loaders().resolved)
    preparing = Preparing(prepare_batch)
    inference = session.inference

    def sums(program: ModelProgram, call: Sequence[Piece]) -> torch.Tensor:
        """Return the sums over one call, and see that filling changes none of them."""

        def of_one(valid: int, batch: Any) -> torch.Tensor:
            pieces = [Piece(batch, call[0].rows, valid), *[Piece(batch, call[0].rows, 0)] * (len(call) - 1)]
            output: torch.Tensor = inference.infer(program, *_arguments(pieces))
            return output

        result: torch.Tensor = inference.infer(program, *_arguments(call))
        for piece in call:
            if piece.valid != 0:
                of_piece = functools.partial(of_one, piece.valid or piece.rows)
                output = result if piece.valid is None else of_piece(piece.batch)
                inference.filling.check(program, piece.batch, piece.valid or piece.rows, output, of_piece)
        return result.double().sum(dim=0)

    def run(batch: Any) -> Dict[str, Any]:
        program = evaluation.program()
        batches, _ = preparing.micro_batches(batch, program)
        calls = list(inference.calls(program, batches))
        filled = any(piece.valid is not None for call in calls for piece in call)
        if filled and program.effects.buffers(*batches[0], torch.ones(row_count(batches[0]))):
            raise RowsError(
                f"A batch of {sum(map(row_count, batches))} samples does not fill device calls of "
                f"{program.resolved.micro_batches} micro-batches of {calls[0][0].rows} rows, and the filling would "
                "count in the buffers that forward writes. Use a batch_size that divides the number of samples, or "
                "leave the incomplete batch out with drop_last=True."
            )
        totals = torch.zeros(len(averages), dtype=torch.float64)
        for call in calls:
            totals += sums(program, call)
        return {**dict(zip(averages, totals.tolist())), _SAMPLES: sum(map(row_count, batches))}

    def compile(batch: Any) -> ModelProgram:
        program = evaluation.program()
        batches, _ = preparing.micro_batches(batch, program)
        return inference.compile(program, *_arguments(next(inference.calls(program, batches))))

    def prepare(batch: Any) -> Any:
        return preparing.joined(batch, evaluation.program())

    evaluator = IPUEngine(IPUStep(run, evaluation.program, prepare, compile), session, loaders)
    for name in averages:
        _Mean(name).attach(evaluator, name)
    return evaluator


def _arguments(call: Sequence[Piece]) -> Tuple[Any, Any, torch.Tensor]:
    """Return inputs, targets and which rows count, for the pieces of a call."""
    x, y = join([piece.batch for piece in call])
    counted = [torch.arange(piece.rows) < (piece.rows if piece.valid is None else piece.valid) for piece in call]
    return x, y, torch.cat(counted).float()
