"""Tensors of the host that recorded operations read: weights, and others, of which no gradients exist."""

from __future__ import annotations

from typing import Any

import torch

from ignite_ipu.deferred.graph.leaves import Input, Shape
from ignite_ipu.deferred.graph.owners import parameter_of
from ignite_ipu.deferred.graph.structure import refuse_sparse
from ignite_ipu.deferred.tensor.gradient_refusals import ON_THE_HOST, refuse_weights_of_the_host, withhold_gradient
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.tensors.raw import requires_grad
from ignite_ipu.program.user_code import Line
from ignite_ipu.session.weights.access import is_watched

__all__ = ["input_of", "is_weight"]


def is_weight(tensor: Any) -> bool:
    """Tell whether a tensor is a trained weight, of a captured model or held by an optimizer of one."""
    own = is_watched(type(tensor)) or parameter_of(tensor) is not None
    return own and requires_grad(tensor)


def input_of(tensor: torch.Tensor, line: Line) -> Input:
    """Return what a recorded operation refers to for a tensor of the host, which may be a weight.

    Raises:
        CaptureError: The host has computed it from weights, or has it in a form that no program takes.
    """
    found = parameter_of(tensor)
    if found is not None:
        model, name = found
        model.check_weights()
        return Input(tensor, Shape.of(tensor, requires_grad(tensor)), name, model)
    if is_weight(tensor):
        return Input.of_weight(tensor)
    if requires_grad(tensor) and tensor.is_leaf and torch.is_grad_enabled():
        withhold_gradient(tensor)
    elif requires_grad(tensor):
        refuse_weights_of_the_host(tensor, line)
        raise CaptureError(
            f"A tensor of shape {tuple(tensor.shape)} at {line} requires gradients, but it is no part of the "
            "captured model, so the device could not train through it. If a model in evaluation mode computed it, call "
            "model.train() to train that, or use torch.no_grad(); else call detach() on it. "
            f"{ON_THE_HOST}"
        )
    if tensor.device.type != "cpu":
        raise CaptureError(
            f"A tensor on {tensor.device} takes part in the step at {line}; PopTorch copies from the host's "
            "memory. Leave it on the CPU."
        )
    refuse_sparse(tensor, line)
    return Input(tensor, Shape.of(tensor, False))
