"""The user's optimizer in a captured loop: `step()` runs the captured update, `zero_grad()` drops what was not run.

They become attributes of the object. They go before those that learning-rate schedulers put there, and neither copies
nor files of an optimizer contain attributes.
"""

from __future__ import annotations

import weakref
from types import MethodType
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from ignite_ipu.deferred.model.held import MODEL, OPTIMIZERS, is_held
from ignite_ipu.deferred.model.joined import join
from ignite_ipu.deferred.model.model import CapturedModel, owner_of
from ignite_ipu.errors import CaptureError
from ignite_ipu.optimizers.step_hooks import of_scripts
from ignite_ipu.program.tensors.raw import requires_grad
from ignite_ipu.program.user_code import Line, current_line

__all__ = ["capture_optimizer", "captured_by", "joined_by_optimizers"]


def capture_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer run captured updates from now on, if it holds the parameters of a captured model."""
    OPTIMIZERS.add(optimizer)
    optimizer.__dict__["step"] = MethodType(_step, optimizer)
    optimizer.__dict__["zero_grad"] = MethodType(_zero_grad, optimizer)
    optimizer.__dict__["add_param_group"] = MethodType(_add_param_group, optimizer)


def joined_by_optimizers(models: Sequence[CapturedModel], line: Line) -> List[CapturedModel]:
    """Return what trains captured models, joined as far as they have an optimizer or a loss in common.

    They know their optimizers then. Of several optimizers of one model the one counts that could train it alone; which
    one does, its `step()` says. Frozen models that no optimizer holds become parts of the one that is trained, if one
    is.

    Args:
        models: What a loss is computed by.
        line: Where that loss goes backward.
    """
    optimizers = list(OPTIMIZERS)
    for optimizer in optimizers:
        _joined(optimizer)
    for optimizer in sorted(optimizers, key=lambda optimizer: not _trains_alone(optimizer)):
        model = _joined(optimizer)
        if model is not None and model.training.optimizer is None:
            captured_by(optimizer)
    wholes = list(dict.fromkeys(model.whole for model in models))
    trained = [model for model in wholes if is_held(model.model) or not model.is_frozen]
    if len(wholes) == 1 or len(trained) != 1:
        return wholes
    frozen = [model for model in wholes if model is not trained[0]]
    return [join([*trained, *frozen], f"The loss at {line} is computed by")]


def captured_by(optimizer: torch.optim.Optimizer) -> Optional[CapturedModel]:
    """Return the captured model whose parameters an optimizer holds, None if it holds no captured parameters.

    Several models whose parameters it holds become one from then on.

    Raises:
        CaptureError: These models share modules, or the model has another optimizer for some of its parameters.
    """
    known: Optional[weakref.ref[CapturedModel]] = optimizer.__dict__.get(MODEL)
    model = None if known is None else known()
    if model is not None and model.whole is model and model.training.prepared:
        return model
    model = _joined(optimizer)
    if model is None:
        return None
    other = model.training.optimizer
    if other is None:
        model.training.optimizer = optimizer
    elif other is not optimizer and not _holds_all(optimizer, model):
        raise CaptureError(
            f"The model {model.name} has two optimizers, a {type(other).__name__} and a {type(optimizer).__name__}, "
            "but a device step updates all weights by one. Use one optimizer with a parameter group for each part, "
            "which may have a learning rate of its own."
        )
    optimizer.__dict__[MODEL] = weakref.ref(model)
    return model


def _joined(optimizer: torch.optim.Optimizer) -> Optional[CapturedModel]:
    """Return the captured model whose parameters an optimizer holds, after joining it from several where need be."""
    models = [model for model in dict.fromkeys(map(owner_of, _held(optimizer))) if model is not None]
    if len(models) > 1:
        return join(models, f"The {type(optimizer).__name__} holds parameters of")
    return models[0] if models else None


def _held(optimizer: torch.optim.Optimizer) -> List[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _trains_alone(optimizer: torch.optim.Optimizer) -> bool:
    model = _joined(optimizer)
    return model is not None and _holds_all(optimizer, model)


def _holds_all(optimizer: torch.optim.Optimizer, model: CapturedModel) -> bool:
    """Tell whether an optimizer alone could train a model."""
    held = set(map(id, _held(optimizer)))
    with torch._C.DisableTorchFunctionSubclass():
        return all(id(parameter) in held for parameter in model.model.parameters() if requires_grad(parameter))


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
    if model.training.optimizer is not self:
        model.updates.use(self)
    # Once there is a device's optimizer, one hook of this library's guards the step of the host.
    if _global_optimizer_pre_hooks or len(self._optimizer_step_pre_hooks) > model.training.prepared:
        _run_before(self, of_scripts(_global_optimizer_pre_hooks, self._optimizer_step_pre_hooks))
    model.updates.step()
    if self._optimizer_step_post_hooks or _global_optimizer_post_hooks:
        for hook in of_scripts(self._optimizer_step_post_hooks, _global_optimizer_post_hooks):
            hook(self, (self,), {})


def _run_before(optimizer: torch.optim.Optimizer, hooks: Sequence[Callable[..., Any]]) -> None:
    for hook in hooks:
        if hook(optimizer, (optimizer,), {}) is not None:
            raise CaptureError(
                f"A hook before {type(optimizer).__name__}.step() at {current_line()} returned other arguments for it, "
                "but the step of a device takes none. Let it return None."
            )


def _zero_grad(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    model = captured_by(self)
    if model is None:
        type(self).zero_grad(self, set_to_none)
        return
    model.updates.zero_grad(
        set_to_none, lambda: [parameter for group in self.param_groups for parameter in group["params"]]
    )
    if model.training.optimizer is not self:
        # Its update comes next, and how it is clipped is said before.
        model.training.change_optimizer(self)


def _add_param_group(self: torch.optim.Optimizer, param_group: Dict[str, Any]) -> None:
    model = captured_by(self)
    if model is not None and model.training.optimizer is self:
        model.training.forget_program()
    type(self).add_param_group(self, param_group)


# Schedulers wrap the step of their optimizer to learn whether it was called, and warn when they find another one. The
# link to the device's optimizer tells them instead.
for _mark in ("_wrapped_by_lr_sched", "_with_counter"):
    setattr(_step, _mark, True)
