"""Parameters that forward freezes or thaws while it is traced, with `requires_grad` or `requires_grad_()`.

A weight on the device is trained or not; where forward takes its gradient away, what follows reads it detached, until
forward gives the gradient back. The user's parameters keep their own setting.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.trace.active import Trace
from ignite_ipu.emulator.trace.traced_tensor import IpuTensor


def called(capture: Trace, name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[IpuTensor]:
    """Answer a call of `requires_grad_` or, on a parameter, `detach_`; None for any other."""
    if name not in ("requires_grad_", "detach_"):
        return None
    tensor: IpuTensor = capture.traced(args[0])
    if name == "requires_grad_":
        set_requires_grad(capture, tensor, bool(args[1] if len(args) > 1 else kwargs.get("requires_grad", True)))
        return tensor
    if _weight(capture, tensor) is None:
        return None
    set_requires_grad(capture, tensor, False)
    return tensor


def set_requires_grad(capture: Trace, tensor: IpuTensor, value: bool) -> None:
    """Let gradients flow to a traced tensor from here on, or not.

    Raises:
        Error: A parameter that was frozen when the model was wrapped is to be trained.
        RuntimeError: PyTorch's own, for a tensor that is computed from others.
    """
    weight = _weight(capture, tensor) if capture.training else None
    with capture.outside():
        before = tensor.meta.requires_grad
        if weight is None:
            tensor.meta.requires_grad_(value)
            return
    if value == before:
        return
    if not value:
        capture.trained[weight] = (tensor.node, tensor.meta)
        detached = capture.record(torch.Tensor.detach, tensor)
        capture.replace(tensor, detached.node, detached.meta)
    elif weight in capture.trained:
        capture.replace(tensor, *capture.trained[weight])
    else:
        raise backend_error(
            f"forward sets requires_grad of {weight}, which was False when the model was wrapped: which weights are "
            "trained is compiled in. Call requires_grad_(True) on it before."
        )


def _weight(capture: Trace, tensor: IpuTensor) -> Optional[str]:
    return next((name for name, traced in capture.weights.items() if traced is tensor), None)
