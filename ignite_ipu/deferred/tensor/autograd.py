"""`torch.autograd.grad` and `backward(inputs=...)` of losses that are recorded."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from ignite_ipu.capabilities.gradients import DIFFERENTIATED_AGAIN, OF_COMPUTED
from ignite_ipu.deferred.graph.operations import Value
from ignite_ipu.deferred.graph.owners import parameter_of
from ignite_ipu.deferred.tensor.losses import gradients_of
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, gradient_hooks_of


def asked_gradients(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: Optional[bool] = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: Optional[bool] = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> Tuple[Optional[torch.Tensor], ...]:
    """Return what `torch.autograd.grad` does, for gradients with respect to weights."""
    line = current_line()
    refusal = f"{line}: {OF_COMPUTED.refusal('torch.autograd.grad')}"
    if create_graph:
        raise CaptureError(f"{line}: {DIFFERENTIATED_AGAIN.refusal('torch.autograd.grad(create_graph=True)')}")
    if is_grads_batched:
        raise CaptureError(refusal)
    tensors = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    factors = [grad_outputs] if grad_outputs is None or isinstance(grad_outputs, torch.Tensor) else list(grad_outputs)
    factors += [None] * (len(tensors) - len(factors))
    parameters = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    if not all(isinstance(getattr(each, "value", None), Value) for each in tensors):
        raise CaptureError(refusal)
    with torch.enable_grad():
        parts = [each if factor is None else (each * factor).sum() for each, factor in zip(tensors, factors)]
        total: Any = parts[0] if len(parts) == 1 else torch.stack([part.reshape(()) for part in parts]).sum()
    found = gradients_of(total.value, parameters, bool(retain_graph), refusal)
    for position, (parameter, gradient) in enumerate(zip(parameters, found)):
        if gradient is not None and gradient_hooks_of(parameter) and parameter_of(parameter) is not None:
            with DisableTorchFunctionSubclass():
                (found[position],) = torch.autograd.grad(parameter, parameter, gradient)  # which calls the hooks
        elif gradient is None and materialize_grads:
            found[position] = torch.zeros(parameter.shape, dtype=parameter.dtype)
        elif gradient is None and not allow_unused:
            raise RuntimeError(
                "One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True "
                "if this is the desired behavior."
            )
    return tuple(found)


def accumulate_to(loss: Any, inputs: Any, factor: Optional[torch.Tensor], retained: bool) -> None:
    """Do what `backward(inputs=...)` does: gradients of some weights alone are accumulated."""
    refusal = (
        f"backward(inputs=...) at {current_line()} cannot be honoured: the device differentiates with respect "
        "to all trainable weights. Call requires_grad_(False) on the others before the model is called."
    )
    parameters = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    total: Any = loss if factor is None else (loss * factor).sum()
    found = zip(parameters, gradients_of(total.value, parameters, retained, refusal))
    pairs = [(parameter, gradient) for parameter, gradient in found if gradient is not None]
    if pairs:
        # By autograd itself, which calls hooks.
        torch.autograd.backward([parameter for parameter, _ in pairs], [gradient for _, gradient in pairs])
