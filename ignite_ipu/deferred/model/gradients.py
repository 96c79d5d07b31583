"""Gradients, which exist on the device alone: what may be asked of them, and what stands for their norm."""

from __future__ import annotations

from typing import Iterable, Union

import torch

from ignite_ipu.deferred.graph.operations import CallSignature, Operation, Shape
from ignite_ipu.deferred.graph.structure import flatten
from ignite_ipu.deferred.model.model import CapturedModel
from ignite_ipu.deferred.tensor.tensor import deferred_results
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.tensors.raw import requires_grad
from ignite_ipu.program.user_code import current_line

__all__ = ["check_all_parameters", "gradient_norm"]


def check_all_parameters(model: CapturedModel, parameters: Union[torch.Tensor, Iterable[torch.Tensor]]) -> None:
    """Refuse to clip the gradients of some parameters only.

    Raises:
        CaptureError: Parameters that are trained are missing.
    """
    given = {id(parameters)} if isinstance(parameters, torch.Tensor) else {id(each) for each in parameters}
    with torch._C.DisableTorchFunctionSubclass():
        named = list(model.session.model.named_parameters())
        missing = [name for name, each in named if requires_grad(each) and id(each) not in given]
    if given and missing:
        raise CaptureError(
            f"clip_grad_norm_ at {current_line()} leaves out {len(missing)} trained parameters ({missing[0]}, "
            "...); a device clips the global norm of all. Pass model.parameters() of the prepared model."
        )


def gradient_norm() -> torch.Tensor:
    """Return what stands for the norm of gradients that never leave the device."""
    operation = Operation(_NORM, None, (), current_line())
    operation.problem = "the norm of the gradients stays on the device; remove the line that reads it"
    norm: torch.Tensor = deferred_results(operation)
    return norm


_NORM = CallSignature(
    None, flatten(((), {}), []), False, flatten(torch.empty(()), []), [Shape((), (), torch.float32, False)]
)
