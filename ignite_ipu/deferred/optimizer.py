"""The user's optimizer in a captured loop: `step()` runs the captured update, `zero_grad()` drops what was not run.

Both become attributes of the object. They go before those that learning-rate schedulers put there, and neither copies
nor files of an optimizer contain attributes.
"""

from __future__ import annotations

import weakref
from types import MethodType
from typing import Any, Dict, List, Optional

import torch

from ignite_ipu.deferred.errors import CaptureError
from ignite_ipu.deferred.model import CapturedModel, parameter_of

__all__ = ["capture_optimizer", "captured_by", "find_optimizers", "release_optimizer"]

_MODELS: weakref.WeakKeyDictionary[torch.optim.Optimizer, weakref.ref[CapturedModel]] = weakref.WeakKeyDictionary()
_OPTIMIZERS: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def capture_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer run captured updates from now on, if it holds the parameters of a captured model."""
    _OPTIMIZERS.add(optimizer)
    optimizer.__dict__["step"] = MethodType(_step, optimizer)
    optimizer.__dict__["zero_grad"] = MethodType(_zero_grad, optimizer)


def release_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Give an optimizer its own methods back."""
    for name in ("step", "zero_grad"):
        optimizer.__dict__.pop(name, None)
    _MODELS.pop(optimizer, None)
    _OPTIMIZERS.discard(optimizer)


def find_optimizers() -> None:
    """Let every optimizer that is captured know its model, and the models their optimizers."""
    for optimizer in list(_OPTIMIZERS):
        captured_by(optimizer)


def captured_by(optimizer: torch.optim.Optimizer) -> Optional[CapturedModel]:
    """Return the captured model whose parameters an optimizer holds, None if it holds no captured parameters.

    Raises:
        CaptureError: It holds parameters of several captured models, or the model has another optimizer.
    """
    known = _MODELS.get(optimizer)
    model = None if known is None else known()
    if model is not None:
        return model
    found: Dict[int, CapturedModel] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            owner = parameter_of(parameter)
            if owner is not None:
                found[id(owner[0])] = owner[0]
    models: List[CapturedModel] = list(found.values())
    if not models:
        return None
    if len(models) > 1:
        names = " and ".join(sorted(type(model.session.model).__name__ for model in models))
        raise CaptureError(
            f"The {type(optimizer).__name__} holds parameters of several captured models ({names}); one device step "
            "trains one model. Put them into one nn.Module and prepare that."
        )
    model = models[0]
    other = model.training.optimizer
    if other is not None and other is not optimizer:
        raise CaptureError(
            f"The model {type(model.session.model).__name__} has two optimizers, a {type(other).__name__} and a "
            f"{type(optimizer).__name__}, but a device step updates all weights by one. Use one optimizer with a "
            "parameter group for each part, which may have a learning rate of its own."
        )
    model.training.optimizer = optimizer
    _MODELS[optimizer] = weakref.ref(model)
    return model


def _step(self: torch.optim.Optimizer, closure: Any = None) -> None:
    model = captured_by(self)
    if model is None:
        type(self).step(self, closure)
        return
    if closure is not None:
        raise CaptureError(
            "optimizer.step(closure) evaluates the loss several times, which a compiled step cannot. Call backward and "
            "then step() without a closure."
        )
    model.step()


def _zero_grad(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    model = captured_by(self)
    if model is None:
        type(self).zero_grad(self, set_to_none)
        return
    model.zero_grad()


# Schedulers wrap the step of their optimizer to learn whether it was called, and warn when they find another one. The
# link to the device's optimizer tells them instead.
for _mark in ("_wrapped_by_lr_sched", "_with_counter"):
    setattr(_step, _mark, True)
