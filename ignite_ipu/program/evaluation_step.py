"""The module that is compiled for evaluation."""

from __future__ import annotations

from typing import (
    Any,
    Callable,
)

from torch import nn

from ignite_ipu.program.guarded_trace import guarded
from ignite_ipu.program.outputs import check_output, known_to_poptorch
from ignite_ipu.program.step import BatchStep, call_model, unchanged


class EvaluationStep(BatchStep):
    """The module that is compiled for evaluation: it returns the predictions of a micro-batch.

    Args:
        model: The user's model.
        model_fn: Calls the model with the inputs.
        model_transform: Turns the model's output into the predictions, inside the compiled program.
        half: Whether products run in half precision, by the rule of `ignite_ipu.program.forward.half_precision`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        model_fn: Callable[[nn.Module, Any], Any] = call_model,
        model_transform: Callable[[Any], Any] = unchanged,
        half: bool = False,
    ) -> None:
        super().__init__(model, ("x",), model_fn, model_transform, half)

    def again(self) -> EvaluationStep:
        """Return a step that computes the same, for batches of a layout of its own."""
        return EvaluationStep(
            self.model, model_fn=self.model_fn, model_transform=self.model_transform, half=self.half_products
        )

    def forward(self, *leaves: Any) -> Any:
        """Return the predictions for the leaves of `x`.

        Raises:
            OutputError: The predictions cannot come back from the device.
        """
        (x,) = self.layout.batch(leaves)
        with guarded(self):
            y_pred = self.call_model(x)
            self.computed.mark()
            check_output(y_pred)
            return self.written.beside(known_to_poptorch(y_pred), self.model)
