"""Derivatives with respect to inputs, which no device gives: for adversarial examples, penalties, saliency maps."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import torch

from ignite_ipu.deferred.errors import CaptureError
from ignite_ipu.deferred.lines import current_line
from ignite_ipu.function_contexts import FunctionGuard

__all__ = ["ON_THE_HOST", "DerivativeGuard"]

ON_THE_HOST = (
    "Gradients of inputs do not exist on the device: take them on the host, from a copy of the model, "
    "copy.deepcopy(model), which is an ordinary one with the newest weights. A loss that is computed from them is "
    "trained on the host."
)
_FUNCTIONS = (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)


class DerivativeGuard(FunctionGuard):
    """Refuses backward passes in its `with` block, where a model is called for a look or traced."""

    def check(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        """Refuse to differentiate."""
        if func in _FUNCTIONS:
            raise CaptureError(
                f"{func.__name__}() at {current_line()} differentiates within the forward of a model, but a compiled "
                "program has one backward pass, that of its loss. Write the derivative out in forward. "
                f"{ON_THE_HOST}"
            )
