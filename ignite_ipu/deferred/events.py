"""Events of captured loops, for tools that follow a program from outside."""

from __future__ import annotations

from typing import Any, Callable, List, Optional

import torch
from torch import nn

from ignite_ipu.deferred.graph.owners import parameter_of
from ignite_ipu.program.tensors.raw import gradient_of
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


class LoopObserver:
    """Follows captured loops. Its methods do nothing; subclasses override them."""

    def went_backward(self, loss: torch.Tensor) -> None:
        """Note a deferred loss that goes backward."""

    def evaluated(self, module: nn.Module, output: Any) -> None:
        """Note the output of a call of a captured model without training."""


def has_gradient(parameter: torch.Tensor) -> Optional[bool]:
    """Return whether `parameter.grad` of a captured model's parameter is not None; None for any other tensor.

    The gradient stays on the device, and the loop goes on as if it was not looked at.
    """
    owner = parameter_of(parameter)
    if owner is None:
        return None
    with DisableTorchFunctionSubclass():
        return gradient_of(parameter) is not None or owner[0].loop.updates.gradients.shows(parameter)


OBSERVERS: List[LoopObserver] = []
"""The observers of this process."""


def observe(observer: LoopObserver) -> Callable[[], None]:
    """Have an observer follow all captured loops of this process; returns the function that ends it."""
    OBSERVERS.append(observer)
    return lambda: OBSERVERS.remove(observer)
