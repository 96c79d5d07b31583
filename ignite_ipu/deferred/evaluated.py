"""What a captured model in evaluation mode returns while gradients are enabled."""

from __future__ import annotations

from typing import Any, List

import torch

from ignite_ipu.deferred.errors import CaptureError
from ignite_ipu.deferred.structure import put_together, take_apart

__all__ = ["with_gradients"]


class _Evaluated(torch.autograd.Function):
    """What a model in evaluation mode returned while gradients were enabled: natively it can go backward."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, witness: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise CaptureError(
            "backward() reached the output of a model that was called in evaluation mode, which an inference program "
            "computed. Call model.train() before training."
        )


def with_gradients(output: Any) -> Any:
    """Let tensors require gradients, so that no step takes them for constants."""
    leaves: List[Any] = []
    structure = take_apart(output, leaves)
    witness = torch.zeros((), requires_grad=True)
    found = [_Evaluated.apply(leaf, witness) if leaf.is_floating_point() else leaf for leaf in leaves]  # type: ignore[no-untyped-call]
    return put_together(structure, found)
