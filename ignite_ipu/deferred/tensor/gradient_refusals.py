"""Refusals of what the host computes from captured weights by itself: its gradients would not reach the device."""

from __future__ import annotations

from typing import Any, List

import torch

from ignite_ipu.deferred.graph.owners import parameter_of
from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.program.user_code import Line

__all__ = ["ON_THE_HOST", "refuse_weights_of_the_host"]

ON_THE_HOST = (
    "Gradients of inputs do not exist on the device: take them on the host, from a copy of the model, "
    "copy.deepcopy(model), which is an ordinary one with the newest weights. A loss that is computed from them is "
    "trained on the host."
)
_REMEDY = (
    "For c * sum(p.pow(2)), give an optimizer that adds weight_decay to gradients (SGD, Adam, RMSprop) "
    "weight_decay=2 * c. Anything else, compute in a forward that is captured: prepare a module whose forward returns "
    "the model's output and what else the loss needs. To look at the value alone, compute it under torch.no_grad()."
)


def refuse_weights_of_the_host(tensor: torch.Tensor, line: Line) -> None:
    """Refuse a tensor that PyTorch has computed on the host from captured weights, as a penalty on them is.

    Raises:
        CaptureError: It is one.
    """
    names = _weights_behind(tensor)
    if not names:
        return
    raise CaptureError(
        f"A tensor of shape {tuple(tensor.shape)} at {line} was computed from weights of the captured model "
        f"({listed(names)}), but not by a call of that model: by a penalty on weights, by one "
        "of its layers, or by model.forward(...). That ran on the host, so its gradient would not reach the device. "
        f"Call model(...) itself. {_REMEDY}"
    )


def _weights_behind(tensor: torch.Tensor) -> List[str]:
    """Return the names of the captured parameters that a tensor of the host would be differentiated to."""
    names = []
    seen = set()
    waiting: List[Any] = [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        # Nodes that add up the gradient of a leaf have the leaf.
        leaf = getattr(node, "variable", None)
        owner = None if leaf is None else parameter_of(leaf)
        if owner is not None:
            names.append(owner[1])
        waiting += [before for before, _ in node.next_functions]
    return sorted(names)
