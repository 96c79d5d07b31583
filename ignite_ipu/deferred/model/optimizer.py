"""The user's optimizer in a captured loop: `step()` runs the captured update, `zero_grad()` drops what was not run.

They become attributes of the object. They go before those that learning-rate schedulers put there, and neither copies
nor files of an optimizer contain attributes.
"""

from __future__ import annotations

import weakref
from types import MethodType
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from ignite_ipu.deferred.graph.owners import parameter_of
from ignite_ipu.deferred.model.joined import join
from ignite_ipu.deferred.model.model import CapturedModel
from ignite_ipu.errors import CaptureError
from ignite_ipu.optimizers.step_hooks import of_scripts
from ignite_ipu.program.tensors.raw import requires_grad
from ignite_ipu.program.user_code import current_line

__all__ = [
    "capture_optimizer",
    "captured_by",
    "find_optimizers",
    "held_parameters",
    "is_held",
    "is_trained",
    "release_optimizer",
]

_MODEL = "_ignite_ipu_model"
_OPTIMIZERS: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def capture_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer run captured updates from now on, if it holds the parameters of a captured model."""
    _OPTIMIZERS.add(optimizer)
    optimizer.__dict__["step"] = MethodType(_step, optimizer)
    optimizer.__dict__["zero_grad"] = MethodType(_zero_grad, optimizer)
    optimizer.__dict__["add_param_group"] = MethodType(_add_param_group, optimizer)


def release_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Give an optimizer its own methods back."""
    for name in ("step", "zero_grad", "add_param_group", _MODEL):
        optimizer.__dict__.pop(name, None)
    _OPTIMIZERS.discard(optimizer)


def find_optimizers() -> None:
    """Join the models that have an optimizer in common, and let models know their optimizers.

    Of several optimizers of one model the one counts that could train it alone; which one does, its `step()` says.
    """
    optimizers = list(_OPTIMIZERS)
    for optimizer in optimizers:
        _joined(optimizer)
    for optimizer in sorted(optimizers, key=lambda optimizer: not _trains_alone(optimizer)):
        model = _joined(optimizer)
        if model is not None and model.training.optimizer is None:
            captured_by(optimizer)


def is_trained(model: CapturedModel) -> bool:
    """Tell whether some optimizer holds a parameter of a model that requires gradients."""
    held = held_parameters()
    with torch._C.DisableTorchFunctionSubclass():
        return any(id(parameter) in held and requires_grad(parameter) for parameter in model.model.parameters())


def is_held(model: CapturedModel) -> bool:
    """Tell whether some optimizer holds a parameter of a model."""
    held = held_parameters()
    return any(id(parameter) in held for parameter in model.model.parameters())


def held_parameters() -> Set[int]:
    """Return the ids of the parameters that some optimizer holds."""
    return {id(each) for optimizer in list(_OPTIMIZERS) for group in optimizer.param_groups for each in group["params"]}


def captured_by(optimizer: torch.optim.Optimizer) -> Optional[CapturedModel]:
    """Return the captured model whose parameters an optimizer holds, None if it holds no captured parameters.

    Several models whose parameters it holds become one from then on.

    Raises:
        CaptureError: These models share modules, or the model has another optimizer for some of its parameters.
    """
    known: Optional[weakref.ref[CapturedModel]] = optimizer.__dict__.get(_MODEL)
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
    optimizer.__dict__[_MODEL] = weakref.ref(model)
    return model


def _joined(optimizer: torch.optim.Optimizer) -> Optional[CapturedModel]:
    """Return the captured model whose parameters an optimizer holds, after joining it from several where need be."""
    found: Dict[int, CapturedModel] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            owner = parameter_of(parameter)
            if owner is not None:
                found[id(owner[0])] = owner[0]
    models: List[CapturedModel] = list(found.values())
    return (
        join(models, f"The {type(optimizer).__name__} holds parameters of")
        if len(models) > 1
        else next(iter(models), None)
    )


def _trains_alone(optimizer: torch.optim.Optimizer) -> bool:
    model = _joined(optimizer)
    return model is not None and _holds_all(optimizer, model)


def _holds_all(optimizer: torch.optim.Optimizer, model: CapturedModel) -> bool:
    """Tell whether an optimizer alone could train a model."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
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
        model.use(self)
    # Once there is a device's optimizer, one hook of this library's guards the step of the host.
    if _global_optimizer_pre_hooks or len(self._optimizer_step_pre_hooks) > model.training.prepared:
        _run_before(self, of_scripts(_global_optimizer_pre_hooks, self._optimizer_step_pre_hooks))
    model.step()
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
    model.zero_grad(set_to_none, lambda: [parameter for group in self.param_groups for parameter in group["params"]])
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
