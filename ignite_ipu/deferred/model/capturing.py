"""Begins to capture the calls of a model and the steps of an optimizer.

`step()` runs the captured update then, and `zero_grad()` drops what was not run. They become attributes of the user's
optimizer: they go before those that learning-rate schedulers put there, and neither copies nor files of an optimizer
contain attributes.
"""

from __future__ import annotations

import contextlib
import weakref
from types import MethodType
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set

import torch
from torch import nn

from ignite_ipu.deferred.graph.owners import MODEL, OPTIMIZERS, WATCH, held_tensors, parameter_of
from ignite_ipu.deferred.model.capturing_class import CAPTURE, capturing_class
from ignite_ipu.deferred.model.joined import captured_by, joined_by_optimizers, trained_by
from ignite_ipu.deferred.model.model import CapturedModel, owner_of
from ignite_ipu.deferred.model.updates import Updates
from ignite_ipu.deferred.model.updates_on_host import UpdatesOnHost
from ignite_ipu.deferred.settings import IGNORING, CaptureObserver
from ignite_ipu.deferred.tensor.tensor import record_on_weights
from ignite_ipu.errors import CaptureError, OptimizerError
from ignite_ipu.optimizers.host_link import note_step
from ignite_ipu.optimizers.kinds import ON_THE_HOST
from ignite_ipu.optimizers.step_hooks import of_scripts
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.program.refusal_frames import brief_refusals
from ignite_ipu.program.tensors.raw import named_tensors
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.hooks import SessionHooks
from ignite_ipu.session.weights.access import AccessTracker, is_watched, unwatch_tensors, watch_tensors
from ignite_ipu.torch_names.optimizers import (
    GLOBAL_POST_HOOKS,
    GLOBAL_PRE_HOOKS,
    marks_of_step,
    post_hooks_of,
    pre_hooks_of,
)
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_DEFAULTS = IPUConfig()


def capture_model(
    model: nn.Module,
    config: IPUConfig = _DEFAULTS,
    postponed: Callable[[], Optional[str]] = lambda: None,
    clip_remedy: Optional[str] = None,
    observer: CaptureObserver = IGNORING,
) -> CapturedModel:
    """Capture a model's calls from now on, and return what does; the same again for a captured model.

    A `SessionError` where another engine trains it, or some of it is not on the CPU. Arguments are `CapturedModel`'s.
    """
    existing: Optional[CapturedModel] = model.__dict__.get(CAPTURE)
    if existing is not None:
        return existing
    owners = _owners(named_tensors(model).values())
    for part in [owner for owner in owners if owner.is_untrained and _is_within(owner.model, model)]:
        # It was asked for the shape of what it returns, or evaluated, before the model that it is a part of.
        part.close(optimizers=False)
        owners.discard(part)
    part_of = next((owner for owner in owners if _is_within(model, owner.model)), None)
    capture = CapturedModel(model, config, joined_by_optimizers, postponed, clip_remedy, part_of, observer)
    observer.captured(capture)
    model.__dict__[CAPTURE] = capture
    own_class: Any = type(model)
    model.__class__ = capturing_class(own_class)
    return capture


def captured(model: Any) -> Optional[CapturedModel]:
    """Return what captures a model, alone or together with others; None for an ordinary one."""
    found: Optional[CapturedModel] = getattr(model, "__dict__", {}).get(CAPTURE)
    return None if found is None else found.whole


def consists_of_captured(model: nn.Module) -> bool:
    """Tell whether a model has weights of other captured ones, of none of which it is a part, and that are trained."""
    owners = _owners(named_tensors(model).values())
    within = any(_is_within(model, owner.model) for owner in owners)
    return not within and not all(owner.is_untrained and _is_within(owner.model, model) for owner in owners)


def _owners(tensors: Iterable[torch.Tensor]) -> Set[CapturedModel]:
    with DisableTorchFunctionSubclass():
        return {owner for owner in map(owner_of, tensors) if owner is not None}


def _is_within(part: nn.Module, whole: nn.Module) -> bool:
    return any(module is part for module in whole.modules())


def capture_optimizer(optimizer: torch.optim.Optimizer, alone: bool = False) -> None:
    """Let an optimizer run captured updates from now on, if it holds the parameters of a captured model.

    If `alone`, functions of its weights are recorded also before a model is captured that has one of them.
    """
    OPTIMIZERS.add(optimizer)
    optimizer.__dict__[WATCH] = HeldWeights(optimizer, alone)
    optimizer.__dict__["step"] = MethodType(_step, optimizer)
    optimizer.__dict__["zero_grad"] = MethodType(_zero_grad, optimizer)
    optimizer.__dict__["add_param_group"] = MethodType(_add_param_group, optimizer)


def on_host(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether PyTorch makes the steps of an optimizer on the host."""
    return bool(optimizer.__dict__[WATCH].on_host())


def _no_owner() -> None:
    return None


class HeldWeights(SessionHooks):
    """Has functions recorded of an optimizer's parameters that no captured model has, yet or at all."""

    def __init__(self, optimizer: torch.optim.Optimizer, alone: bool) -> None:
        super().__init__()
        self._optimizer = weakref.ref(optimizer)
        self._alone = alone
        self._begin()

    def _begin(self) -> None:
        optimizer = self._optimizer()
        assert optimizer is not None
        self._parameters = held_tensors(optimizer)
        watch_tensors(self._parameters)
        self._owner: Callable[[], Optional[CapturedModel]] = _no_owner
        mine = [each for each in self._parameters if is_watched(type(each))]
        self._accesses = AccessTracker(mine, self._bring_nothing, self)

    def on_host(self) -> List[UpdatesOnHost]:
        """Return what runs the calls of the models that the optimizer steps on the host; nothing for other models."""
        known = self._owner()
        owners = [known]
        if known is None or known.whole is not known:
            found = {owner.whole: None for owner in map(owner_of, self._parameters) if owner is not None}
            owners = list(found)
            self._owner = weakref.ref(owners[0]) if len(owners) == 1 else _no_owner
        return [owner.on_host for owner in owners if owner is not None and owner.on_host is not None]

    def renew(self) -> None:
        """Watch the parameters that the optimizer holds now."""
        self.end()
        self._begin()

    def record(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return what is recorded, `NotImplemented` for what the host computes."""
        self._alone = self._alone or any(parameter_of(each) is not None for each in self._parameters)
        return record_on_weights(func, args, kwargs) if self._alone else NotImplemented

    def _bring_nothing(self, brings: bool) -> None:
        """Leave the weights: the host has the only ones."""

    def end(self) -> None:
        self._accesses.ended = True
        unwatch_tensors(self._parameters, always=False)


@brief_refusals
def _step(self: torch.optim.Optimizer, closure: Any = None) -> Any:
    on_host = self.__dict__[WATCH].on_host()
    if on_host:
        return _step_on_host(self, on_host, closure)
    updates = captured_by(self)
    if updates is None:
        found = type(self).step(self, closure)
        note_step(self)
        return found
    try:
        _step_on_device(self, updates, closure)
    except (CaptureError, OptimizerError) as error:
        if not updates.may_leave:
            raise
        updates.leave_device(str(error), error)
        return _step_on_host(self, self.__dict__[WATCH].on_host(), closure)
    return None


def _step_on_host(self: torch.optim.Optimizer, on_host: Sequence[UpdatesOnHost], closure: Any) -> Any:
    with contextlib.ExitStack() as stack:
        for each in on_host:
            wrapped = stack.enter_context(each.stepping(self))
            closure = None if closure is None else wrapped(closure)
        return type(self).step(self) if closure is None else type(self).step(self, closure)


def _step_on_device(self: torch.optim.Optimizer, updates: Updates, closure: Any) -> None:
    if closure is not None:
        raise CaptureError(
            "optimizer.step(closure) evaluates the loss several times, which a compiled step cannot. Call backward and "
            f"then step() without a closure. {ON_THE_HOST}"
        )
    if updates.training.optimizer is not self:
        updates.use(self)
    # Once there is a device's optimizer, one hook of this library's guards the step of the host.
    if GLOBAL_PRE_HOOKS or len(pre_hooks_of(self)) > updates.training.prepared:
        for hook in of_scripts(GLOBAL_PRE_HOOKS, pre_hooks_of(self)):
            if hook(self, (self,), {}) is not None:
                raise CaptureError(
                    f"A hook before {type(self).__name__}.step() at {current_line()} returned other arguments for it, "
                    "but the step of a device takes none. Let it return None."
                )
    updates.step()
    if post_hooks_of(self) or GLOBAL_POST_HOOKS:
        for hook in of_scripts(post_hooks_of(self), GLOBAL_POST_HOOKS):
            hook(self, (self,), {})


def _zero_grad(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    on_host = self.__dict__[WATCH].on_host()
    if on_host:
        with contextlib.ExitStack() as stack:
            for each in on_host:
                stack.enter_context(each.programs.session.weights.stepping())
            type(self).zero_grad(self, set_to_none)
        return
    owners = set() if MODEL in self.__dict__ else _owners(held_tensors(self))
    # Parts of a model may have been called before it, as parametrizations are: nothing joins them yet.
    apart = len(owners) > 1 and all(owner.is_untrained and not owner.uncleared for owner in owners)
    updates = None if apart else captured_by(self)
    if updates is None:
        type(self).zero_grad(self, set_to_none)
        return
    updates.zero_grad(self, set_to_none)
    if self.__dict__[WATCH].on_host():
        return
    if updates.training.optimizer is not self:
        # Its update comes next, and how it is clipped is said before.
        updates.training.change_optimizer(self)


def _add_param_group(self: torch.optim.Optimizer, param_group: Dict[str, Any]) -> None:
    updates = trained_by(self)
    if updates is not None:
        updates.training.forget_program()
    type(self).add_param_group(self, param_group)
    self.__dict__[WATCH].renew()
    if updates is not None and updates.reach is not None:
        updates.train_held()


# Schedulers wrap the step of their optimizer to learn whether it was called, and warn when they find another one. The
# link to the device's optimizer tells them instead.
for _mark in marks_of_step():
    setattr(_step, _mark, True)
