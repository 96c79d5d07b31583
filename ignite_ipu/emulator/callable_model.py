"""What PopTorch takes for a model: modules, and callables that have a `training` attribute."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from ignite_ipu.emulator.arguments import Signature


class CallableModel(nn.Module):
    """A callable as a module without parameters."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.train(function.training)
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def traced_module(model: Any) -> nn.Module:
    """Return the module that an executor traces: a shallow copy, sharing everything but the model's own attributes."""
    return copy.copy(model) if isinstance(model, nn.Module) else CallableModel(model)


def signature_of(model: Any) -> Signature:
    """Return the parameters that a call of the model takes."""
    return Signature(model.forward if isinstance(model, nn.Module) else model)
