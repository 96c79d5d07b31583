"""Tensors that the host has computed from values of models, and of whose gradients it has no graph."""

from __future__ import annotations

from typing import Any, Iterable, Sequence

import torch

from ignite_ipu.capabilities.traced import NO_FUNCTION, SHAPE
from ignite_ipu.deferred.graph.structure import mapped
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.tensors.differentiated import nodes_behind
from ignite_ipu.program.traced_places import refusal_at
from ignite_ipu.program.user_code import current_line


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


def of_host(name: str, result: torch.Tensor) -> torch.Tensor:
    """Return the result of a function that the host applies to values with gradients; no backward pass may reach it.

    Raises:
        CaptureError: It is in a layout in which no tensor can stand for it.
    """
    line = current_line()
    if name.endswith("masked_select"):
        reason = refusal_at(SHAPE, line.place, NO_FUNCTION, f"{name}()")
    else:
        reason = f"A backward pass reached a result of {name} at {line}, which the host has computed."
    if result.layout is not torch.strided:
        raise CaptureError(reason)
    marked: torch.Tensor = without_graph(result, reason)
    return marked


def is_without_graph(tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether a backward pass from some tensors would reach one without a graph, and raise for it."""
    return any(getattr(node, "_forward_cls", None) is _WithoutGraph for node in nodes_behind(tensors))
