"""What a captured model in evaluation mode returns while gradients are enabled."""

from __future__ import annotations

from typing import Any, List

import torch

from ignite_ipu.deferred.graph.structure import flatten, unflatten
from ignite_ipu.deferred.tensor.gradient_refusals import ON_THE_HOST
from ignite_ipu.errors import CaptureError

__all__ = ["with_gradients"]


class _Evaluated(torch.autograd.Function):
    """What a model in evaluation mode returned while gradients were enabled: natively it can go backward."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *differentiated: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise CaptureError(
            "A backward pass reached the output of a model that was called in evaluation mode, which an inference "
            f"program computed. Call model.train() before training. {ON_THE_HOST}"
        )


def with_gradients(output: Any, arguments: Any, trained: bool) -> Any:
    """Let the output of a model require gradients as natively, so that no step takes its tensors for constants.

    Args:
        output: What the model returned.
        arguments: What it was called with, of which gradients may be asked.
        trained: Whether an optimizer has weights of the model.
    """
    given: List[torch.Tensor] = []
    flatten(arguments, given)
    with torch._C.DisableTorchFunctionSubclass():
        differentiated = [tensor for tensor in given if tensor.requires_grad]
    if trained:
        differentiated.append(torch.zeros((), requires_grad=True))
    if not differentiated:
        return output
    leaves: List[Any] = []
    structure = flatten(output, leaves)
    found = [_Evaluated.apply(leaf, *differentiated) if leaf.is_floating_point() else leaf for leaf in leaves]  # type: ignore[no-untyped-call]
    return unflatten(structure, found)
