"""The model and the loss folded into the one module that PopTorch compiles for training.

PopTorch differentiates one loss per program: the last recognised loss operator that no other consumes. A user's loss
may be a sum of several, a formula of its own or a value that the model returns. So its scalar always goes through
`poptorch.identity_loss(loss, reduction="none")` at the very end. That marks it as the loss, and makes every loss
operator before it an ordinary operator again. It changes nothing for a loss that PopTorch recognises by itself.
"""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import nn

from ignite_ipu.errors import LossError, logger
from ignite_ipu.program.forward.randomness import draws_put_back
from ignite_ipu.program.forward.statistics import LaterStatisticsGuard
from ignite_ipu.program.guarded_trace import guarded
from ignite_ipu.program.micro_batches import first_micro_batch
from ignite_ipu.program.outputs import check_output, describe_value, known_to_poptorch
from ignite_ipu.program.step import BatchStep, call_model, unchanged
from ignite_ipu.program.tensors.rows import row_count
from ignite_ipu.program.tensors.trees import map_tensors
from ignite_ipu.torch_names.modules import NormWithStatistics

# Tolerance for a sum over samples with a small term beside it, such as a decay of weights, for twice the samples.
_ABOUT = 0.1


class TrainingStep(BatchStep):
    """The module that is compiled for training: it returns the predictions and the loss of a micro-batch.

    Args:
        model: The user's model.
        loss_fn: Called with predictions and targets, returns the loss. None if the model returns its own loss; see
            `find_loss`.
        model_fn: Calls the model with the inputs.
        model_transform: Turns the model's output into the predictions, inside the compiled program.
        predictions: Whether the predictions come back; without them a step moves less data.
        half: Whether the model's products run in half precision, by the rule of
            `ignite_ipu.program.forward.half_precision`.
        keep_modes: Whether modules stay in the modes they are in, instead of the model being put in training mode.

    Raises:
        TypeError: `model` is no module, or `loss_fn` not callable.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Optional[Union[Callable[[Any, Any], torch.Tensor], nn.Module]] = None,
        *,
        model_fn: Callable[[nn.Module, Any], Any] = call_model,
        model_transform: Callable[[Any], Any] = unchanged,
        predictions: bool = True,
        half: bool = False,
        keep_modes: bool = False,
    ) -> None:
        super().__init__(model, ("x", "y"), model_fn, model_transform, half, returns_writes=False)
        if loss_fn is not None and not callable(loss_fn):
            raise TypeError(f"loss_fn is {loss_fn!r}; a function or module called with (y_pred, y) is needed.")
        # A loss that is a module becomes a child, so that its buffers and parameters move to the device.
        self.loss_fn = loss_fn
        self.predictions = predictions
        self.keep_modes = keep_modes

    def train(self, mode: bool = True) -> TrainingStep:
        """Set the mode of the model's modules, unless they keep theirs."""
        if not self.keep_modes:
            super().train(mode)
        return self

    def again(self) -> TrainingStep:
        """Return a step that computes the same, for batches of a layout of its own."""
        return TrainingStep(
            self.model,
            self.loss_fn,
            model_fn=self.model_fn,
            model_transform=self.model_transform,
            predictions=self.predictions,
            half=self.half_products,
            keep_modes=self.keep_modes,
        )

    def loss_of(self, output: Any) -> torch.Tensor:
        """Return the loss of `(y_pred, loss)`."""
        loss: torch.Tensor = output[1]
        return loss

    def tracks_statistics(self) -> bool:
        """Return whether the model has batch statistics, which each replica keeps for itself."""
        return any(isinstance(each, NormWithStatistics) and each.running_mean is not None for each in self.modules())

    @property
    def beside(self) -> Tuple[Any, ...]:
        """The functions that a call runs beside the model, the loss included."""
        return (*super().beside, self.loss_fn)

    def forward(self, *leaves: Any) -> Any:
        """Return `(y_pred, loss)` for the leaves of `(x, y)`; `(None, loss)` without predictions.

        Raises:
            LossError: There is no loss, or it is no scalar that depends on the model.
            OutputError: The predictions cannot come back from the device.
        """
        x, y = self.layout.batch(leaves)
        with guarded(self, training=True, beside=[LaterStatisticsGuard()]) as traced:
            y_pred = self.call_model(x)
            if traced:
                self.computed.keep()
            else:
                self.computed.mark()
            if self.predictions:
                check_output(y_pred)
            for stages in self.stages:
                stages.begin_loss()
            loss = find_loss(y_pred) if self.loss_fn is None else self.loss_fn(y_pred, y)
            loss = _scalar(loss, traced)
            if traced:
                self._check_differentiable(loss)
        loss = self.marked_loss(loss)
        return (known_to_poptorch(y_pred) if self.predictions else None), loss

    def run_with(self, model: nn.Module, *leaves: Any) -> Any:
        """Return the loss of a micro-batch with another model, the output where that is the loss."""
        x, y = self.layout.batch(leaves)
        y_pred = self.model_transform(self.model_fn(model, x))
        return y_pred if self.loss_fn is None else self.loss_fn(y_pred, y)

    def adds_up(self, leaves: Sequence[Any], micro_batches: int) -> bool:
        """Return whether the loss is a sum over samples: of each sample twice it is twice as large, on the host."""
        try:
            with draws_put_back(), self.host_weights.put_into(self):
                x, y = self.layout.batch(first_micro_batch(leaves, micro_batches))
                rows = row_count((x, y))
                y_pred = self.call_model(x)
                if self.loss_fn is None:
                    once, twice = find_loss(y_pred), find_loss(self.call_model(_twice(x, rows)))
                else:
                    once, twice = self.loss_fn(y_pred, y), self.loss_fn(*_twice((y_pred, y), rows))
            return bool(once) and abs(float(twice) / float(once) - 2) < _ABOUT
        except Exception as error:
            logger.info("The loss cannot be computed of each sample twice: %s", error)
            return False

    def _check_differentiable(self, loss: torch.Tensor) -> None:
        """Refuse a loss from which no way leads back to a weight, as `loss.backward()` does in PyTorch."""
        if loss.requires_grad:
            return
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        # If a trace keeps no record of differentiable values, a weight's own sum is not differentiable, either.
        if not trained or not trained[0].sum().requires_grad:
            return
        raise LossError(
            f"The loss, {describe_value(loss)} of {loss.dtype}, reaches none of the {len(trained)} trained parameters, "
            "so nothing would be trained. Between the model's output and the loss there is a detach(), a no_grad() or "
            "an operation without gradient, such as argmax() or a comparison. Compute it from the output itself. "
            "To watch another value, such as an accuracy, attach a metric."
        )


def _twice(structure: Any, rows: int) -> Any:
    return map_tensors(structure, lambda each: torch.cat([each] * 2) if each.dim() and len(each) == rows else each)


def find_loss(output: Any) -> torch.Tensor:
    """Return the loss in the output of a model that computes its own.

    It is the first of these that has a single element: the output itself, the entry `loss` of a mapping, the attribute
    `loss` of an object, the first or the last item of a tuple.
    """
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, Mapping):
        if output.get("loss") is None:
            raise LossError(
                f"The model's output has the keys {list(output)} but no loss under 'loss'. Pass a loss_fn, or make the "
                "model return its loss (models that take labels return none without them)."
            )
        return output["loss"]  # type: ignore[no-any-return]
    if isinstance(output, (tuple, list)):
        positions = [0, len(output) - 1] if len(output) > 1 else [0]
        candidates: List[torch.Tensor] = [output[i] for i in positions if _could_be_loss(output[i])]
        if len(candidates) == 1:
            return candidates[0]
        found = "both its first and last item" if candidates else "neither its first nor its last item"
        raise LossError(
            f"No loss_fn was given and the model's output is {describe_value(output)}; {found} could be the loss, "
            "which is a tensor with one element. Pass loss_fn=lambda output, y: output[i] with the position i of the "
            "loss."
        )
    loss = getattr(output, "loss", None)
    if loss is None:
        raise LossError(f"No loss_fn was given and there is no loss in the model's output, {describe_value(output)}.")
    return loss  # type: ignore[no-any-return]


def _scalar(loss: Any, traced: bool) -> torch.Tensor:
    """Return the loss as a 0-dimensional tensor, or raise an error with the reason why it is none."""
    if not isinstance(loss, torch.Tensor):
        raise LossError(
            f"The loss is {describe_value(loss)}, not a tensor. Return the tensor itself, without calling item() or "
            "float() on it."
        )
    if loss.numel() != 1:
        raise LossError(
            f"The loss has shape {tuple(loss.shape)}; it must be a scalar, as loss.backward() demands. Reduce it: "
            "reduction='mean' or 'sum', or call .mean() on it."
        )
    if not loss.is_floating_point():
        raise LossError(f"The loss has type {loss.dtype}, which has no gradient. Compute it in floating point.")
    if traced and loss.device.type != "ipu":
        raise LossError("The loss does not depend on the batch or the model: it is a constant of the compiled program.")
    # A reshape to the same shape would be an operator of the program.
    return loss.reshape(()) if loss.dim() else loss


def _could_be_loss(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.is_floating_point()
