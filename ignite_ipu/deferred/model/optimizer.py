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

from ignite_ipu.deferred.graph.owners import parameter_of
from ignite_ipu.deferred.model.held import MODEL, OPTIMIZERS, WATCH, held_by, is_held
from ignite_ipu.deferred.model.joined import join
from ignite_ipu.deferred.model.model import CapturedModel, owner_of
from ignite_ipu.deferred.model.updates import Updates
from ignite_ipu.deferred.tensor.tensor import record_on_weights
from ignite_ipu.errors import CaptureError
from ignite_ipu.optimizers.step_hooks import of_scripts
from ignite_ipu.program.tensors.raw import requires_grad
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.session.hooks import SessionHooks
from ignite_ipu.session.weights.access import AccessTracker, is_watched, unwatch_parameters, watch_parameters

__all__ = ["capture_optimizer", "captured_by", "joined_by_optimizers"]


def capture_optimizer(optimizer: torch.optim.Optimizer, alone: bool = False) -> None:
    """Let an optimizer run captured updates from now on, if it holds the parameters of a captured model.

    Args:
        alone: Whether functions of its weights are recorded also before a model is captured that has one of them.
    """
    OPTIMIZERS.add(optimizer)
    optimizer.__dict__[WATCH] = HeldWeights(optimizer, alone)
    optimizer.__dict__["step"] = MethodType(_step, optimizer)
    optimizer.__dict__["zero_grad"] = MethodType(_zero_grad, optimizer)
    optimizer.__dict__["add_param_group"] = MethodType(_add_param_group, optimizer)


class HeldWeights(SessionHooks):
    """Has functions recorded of an optimizer's parameters that no captured model has, yet or at all.

    Args:
        optimizer, alone: As for `capture_optimizer`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, alone: bool) -> None:
        super().__init__()
        self._parameters = _held(optimizer)
        self._alone = alone
        watch_parameters(self._parameters)
        mine = [each for each in self._parameters if is_watched(type(each))]
        self._accesses = AccessTracker(mine, self._bring_nothing, self)

    def record(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return what is recorded, `NotImplemented` for what the host computes."""
        self._alone = self._alone or any(parameter_of(each) is not None for each in self._parameters)
        return record_on_weights(func, args, kwargs) if self._alone else NotImplemented

    def _bring_nothing(self, brings: bool) -> None:
        """Leave the weights: the host has the only ones."""

    def end(self) -> None:
        """Let the parameters be ordinary ones again."""
        self._accesses.ended = True
        unwatch_parameters(self._parameters, always=False)


def joined_by_optimizers(models: Sequence[CapturedModel], line: Line) -> List[CapturedModel]:
    """Return what trains captured models, joined as far as they have an optimizer or a loss in common.

    They know their optimizers then. Of several optimizers of the same weights the one counts that could train the model
    alone; which one does, its `step()` says.

    Args:
        models: What a loss is computed by.
        line: Where that loss goes backward.
    """
    optimizers = list(OPTIMIZERS)
    for optimizer in optimizers:
        _joined(optimizer)
    wholes = list(dict.fromkeys(model.whole for model in models))
    if len(wholes) > 1:
        # The trained ones come first.
        wholes.sort(key=lambda model: not is_held(model.model) and model.is_frozen)
        wholes = [join(wholes, f"The loss at {line} is computed by")]
    for optimizer in sorted(optimizers, key=lambda optimizer: not _trains_alone(optimizer)):
        model = _joined(optimizer)
        if model is not None and (model.training.optimizer is None or not _overlapping(optimizer, model)):
            model.turn_of(optimizer)
    return wholes


def captured_by(optimizer: torch.optim.Optimizer) -> Optional[Updates]:
    """Return the updates of captured models by an optimizer that holds parameters of these; None if it holds none.

    Several models whose parameters it holds become one from then on.

    Raises:
        CaptureError: These models share modules, or the model has another optimizer for some of its parameters.
    """
    known: Optional[weakref.ref[Updates]] = optimizer.__dict__.get(MODEL)
    updates = None if known is None else known()
    if updates is not None and updates.is_current and updates.training.prepared:
        return updates
    model = _joined(optimizer)
    if model is None:
        return None
    others = _overlapping(optimizer, model)
    if others and _holds_all(optimizer, model) and not model.several:
        updates = model.updates
    elif others:
        raise CaptureError(
            f"The model {model.name} has two optimizers for the same weights, a {type(others[0]).__name__} and a "
            f"{type(optimizer).__name__}. Let each have parameters of its own, or let each have all of them where one "
            "follows the other."
        )
    else:
        updates = model.turn_of(optimizer)
        if not _holds_all(optimizer, model):
            for other in list(OPTIMIZERS):
                if other is not optimizer and _joined(other) is model and not _overlapping(other, model):
                    model.turn_of(other)
    optimizer.__dict__[MODEL] = weakref.ref(updates)
    return updates


def _overlapping(optimizer: torch.optim.Optimizer, model: CapturedModel) -> List[torch.optim.Optimizer]:
    """Return the other optimizers of a model that hold some of the same parameters."""
    own = held_by(optimizer)
    others = [turn.training.optimizer for turn in model.turns]
    return [each for each in others if each is not None and each is not optimizer and own & held_by(each)]


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
    held = held_by(optimizer)
    with torch._C.DisableTorchFunctionSubclass():
        return all(id(parameter) in held for parameter in model.model.parameters() if requires_grad(parameter))


def _step(self: torch.optim.Optimizer, closure: Any = None) -> None:
    updates = captured_by(self)
    if updates is None:
        type(self).step(self, closure)
        return
    if closure is not None:
        raise CaptureError(
            "optimizer.step(closure) evaluates the loss several times, which a compiled step cannot. Call backward and "
            "then step() without a closure."
        )
    if updates.training.optimizer is not self:
        updates.use(self)
    # Once there is a device's optimizer, one hook of this library's guards the step of the host.
    if _global_optimizer_pre_hooks or len(self._optimizer_step_pre_hooks) > updates.training.prepared:
        _run_before(self, of_scripts(_global_optimizer_pre_hooks, self._optimizer_step_pre_hooks))
    updates.step()
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
    updates = captured_by(self)
    if updates is None:
        type(self).zero_grad(self, set_to_none)
        return
    updates.zero_grad(set_to_none, lambda: _held(self))
    if updates.training.optimizer is not self:
        # Its update comes next, and how it is clipped is said before.
        updates.training.change_optimizer(self)


def _add_param_group(self: torch.optim.Optimizer, param_group: Dict[str, Any]) -> None:
    updates = captured_by(self)
    if updates is not None and updates.training.optimizer is self:
        updates.training.forget_program()
    type(self).add_param_group(self, param_group)
    if updates is not None:
        updates.look_again()


# Schedulers wrap the step of their optimizer to learn whether it was called, and warn when they find another one. The
# link to the device's optimizer tells them instead.
for _mark in ("_wrapped_by_lr_sched", "_with_counter"):
    setattr(_step, _mark, True)
