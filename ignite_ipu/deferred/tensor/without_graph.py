"""Tensors that the host has computed from values of models, and of whose gradients it has no graph."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ignite_ipu.deferred.graph.structure import mapped
from ignite_ipu.errors import CaptureError


class _WithoutGraph(torch.autograd.Function):
    """A tensor that requires gradients, as in eager PyTorch, so that no step takes it for a constant."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, reason: str, *sources: torch.Tensor) -> torch.Tensor:
        ctx.reason = reason
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise CaptureError(ctx.reason)


def without_graph(output: Any, reason: str, sources: Sequence[torch.Tensor] = ()) -> Any:
    """Let tensors in a structure require gradients; a backward pass through them raises a CaptureError with a reason.

    Args:
        sources: Tensors that gradients would flow to; those of weights if there are none.
    """
    given = sources or [torch.zeros((), requires_grad=True)]
    apply: Any = _WithoutGraph.apply
    return mapped(output, lambda leaf: apply(leaf, reason, *given) if leaf.is_floating_point() else leaf)
