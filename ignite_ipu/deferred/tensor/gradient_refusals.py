"""Refusals of what the host computes from captured weights by itself: its gradients would not reach the device."""

from __future__ import annotations

import weakref
from typing import Any, List

import torch

from ignite_ipu.deferred.graph.owners import parameter_of
from ignite_ipu.deferred.tensor.device_gradient import DeviceGradient
from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.program.tensors.raw import set_gradient
from ignite_ipu.program.user_code import Line, current_line

__all__ = ["ON_THE_HOST", "refuse_weights_of_the_host", "withhold_gradient"]

ON_THE_HOST = (
    "Gradients of inputs do not exist on the device: take them on the host, from a copy of the model, "
    "copy.deepcopy(model), which is an ordinary one with the newest weights, in a loop with ipu_prepare or an "
    "IPUAccelerator (under ignite-ipu run no copy goes backward). A loss that is computed from them is trained on the "
    "host."
)


class _NoGradient:
    """Source of the gradients of what is no weight."""

    def gradient_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Refuse to return one."""
        raise CaptureError(
            f"The gradient is read at {current_line()} of a tensor of shape {tuple(tensor.shape)} that is no weight of "
            "a captured model. If it is a parameter, make it one of the model that is prepared, or give it to its "
            f"optimizer as an nn.Parameter. {ON_THE_HOST}"
        )


_NO_GRADIENT = _NoGradient()


def withhold_gradient(tensor: torch.Tensor) -> None:
    """Let a tensor's gradient, which a device does not compute, be refused to whoever uses it."""
    if not isinstance(tensor.grad, DeviceGradient):
        with torch._C.DisableTorchFunctionSubclass():
            gradient = DeviceGradient(tensor.detach(), lambda: _NO_GRADIENT, weakref.ref(tensor), ON_THE_HOST)
            set_gradient(tensor, gradient)


def refuse_weights_of_the_host(tensor: torch.Tensor, line: Line) -> None:
    """Refuse a tensor that PyTorch has computed on the host from captured weights, as a penalty on them is."""
    names = _weights_behind(tensor)
    if not names:
        return
    raise CaptureError(
        f"A tensor of shape {tuple(tensor.shape)} at {line} was computed from weights of the captured model "
        f"({listed(names)}) by the host, since its shape depends on values, or before they were captured, so its "
        "gradient would not reach the device. Prepare models and optimizers first, keep shapes fixed (a mask that "
        "multiplies); to look at the value alone, compute it under torch.no_grad()."
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
