"""Captured optimizers: `step()` runs the captured update, and `zero_grad()` drops losses that it was not made of.

Both become attributes of the user's optimizer: they go before those that learning-rate schedulers put there. Neither
copies nor files of an optimizer contain attributes.
"""

from __future__ import annotations

import contextlib
import weakref
from types import MethodType
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.capabilities.optimizers import ON_THE_HOST
from ignite_ipu.deferred.events import IGNORING
from ignite_ipu.deferred.graph.owners import METHODS, MODEL, OPTIMIZERS, WATCH, held_tensors, parameter_of
from ignite_ipu.deferred.model.capturing import owners_of
from ignite_ipu.deferred.model.fused_update import FusedUpdate, known_update
from ignite_ipu.deferred.model.hooks_before import HooksBefore
from ignite_ipu.deferred.model.host_updates import HostUpdates
from ignite_ipu.deferred.model.joined import captured_by, trained_by
from ignite_ipu.deferred.model.loop import Loop, Setup, is_untrained
from ignite_ipu.deferred.model.model import capture_weights, loops_of
from ignite_ipu.deferred.tensor.lost_gradients import LOST, refuse_lost
from ignite_ipu.deferred.tensor.on_weights import record_on_weights
from ignite_ipu.errors import CaptureError, OptimizerError
from ignite_ipu.optimizers.host_link import note_step
from ignite_ipu.optimizers.step_hooks import called, of_scripts, replaced_method
from ignite_ipu.program.refusal_frames import brief_refusals
from ignite_ipu.program.tensors.raw import set_gradient
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.hooks import SessionHooks
from ignite_ipu.session.weights.access import AccessTracker, is_watched, unwatch_tensors, watch_tensors
from ignite_ipu.session.weights.edit_detector import HostStep
from ignite_ipu.torch_names.modules import all_parameters
from ignite_ipu.torch_names.optimizers import (
    GLOBAL_POST_HOOKS,
    GLOBAL_PRE_HOOKS,
    marks_of_step,
    post_hooks_of,
    pre_hooks_of,
)
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


def capture_optimizer(optimizer: torch.optim.Optimizer, alone: bool = False, setup: Optional[Setup] = None) -> None:
    """Let an optimizer run captured updates from now on, if it holds the parameters of a captured model.

    Args:
        optimizer: The optimizer.
        alone: Whether functions of its weights are recorded also before a model is captured that has one of them.
        setup: Settings with which the weights of a loss are captured that calls no model; None refuses such losses.

    Raises:
        CaptureError: A method of the optimizer was replaced before.
    """
    for name in METHODS:
        function = replaced_method(optimizer, name)
        if function is not None:
            kind = type(optimizer).__name__
            raise CaptureError(
                f"{name}() of this {kind} was replaced by {called(function)} before the optimizer was captured at "
                f"{current_line()}: that calls the method of {kind}, which knows nothing of a device. Replace it "
                "afterwards, or register hooks (optimizer.register_step_pre_hook, register_step_post_hook)."
            )
    OPTIMIZERS.add(optimizer)
    optimizer.__dict__[WATCH] = HeldWeights(optimizer, alone, setup)
    methods: Tuple[Callable[..., Any], ...] = (_step, _zero_grad, _add_param_group)
    for name, method in zip(METHODS, methods):
        optimizer.__dict__[name] = MethodType(method, optimizer)


def steps_on_host(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether PyTorch makes the next step of an optimizer, whose loops are all gathered on the host then."""
    return WATCH not in optimizer.__dict__ or bool(optimizer.__dict__[WATCH].gather_on_host())


def is_differentiated_on_host(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether autograd has recorded functions of an optimizer's parameters on the host."""
    return bool(optimizer.__dict__[WATCH].in_graphs)


def _no_loop() -> None:
    return None


class HeldWeights(SessionHooks):
    """Has functions recorded of an optimizer's parameters that no captured model has, yet or at all."""

    def __init__(self, optimizer: torch.optim.Optimizer, alone: bool, setup: Optional[Setup]) -> None:
        super().__init__()
        self._setup = setup
        self._optimizer = weakref.ref(optimizer)
        self._alone = alone
        self._kept: List[Any] = []
        self._begin()

    def _begin(self) -> None:
        optimizer = self._optimizer()
        assert optimizer is not None
        self._parameters = held_tensors(optimizer)
        # A tensor that an optimizer trains is recorded as a parameter of no module.
        self._plain = [each for each in self._parameters if self._alone and type(each) is torch.Tensor]
        for each in self._plain:
            each.__class__ = nn.Parameter
        watch_tensors(self._parameters)
        self._loop: Callable[[], Optional[Loop]] = _no_loop
        mine = [each for each in self._parameters if is_watched(type(each))]
        self._accesses = AccessTracker(mine, self._bring_nothing, self)

    @property
    def in_graphs(self) -> bool:
        """True if autograd has recorded functions of the parameters on the host, by which gradients may come."""
        return self._accesses.in_graphs

    @property
    def awaits_models(self) -> bool:
        """True if further models may be captured that have some of the parameters, in their first calls."""
        return self._setup is None or self._setup.observer is not IGNORING

    def gather_on_host(self) -> List[HostUpdates]:
        """Move updates of all loops that the optimizer steps to the host, if those of one loop are there.

        Returns the updates on the host, none if no loop has them there.
        """
        known = self._loop()
        if known is None or known.now is not known:
            found = loops_of(self._parameters)
            self._loop = weakref.ref(found[0]) if len(found) == 1 else _no_loop
        else:
            found = [known]
        on_host = [loop for loop in found if loop.updates.on_host]
        for loop in found if on_host else ():
            if not loop.updates.on_host:
                kind = type(self._optimizer()).__name__
                loop.updates.leave_device(f"Weights of {on_host[0].name} are, and one {kind} holds these and others.")
        return [each.updates for each in found if isinstance(each.updates, HostUpdates)]

    def renew(self) -> None:
        """Watch the parameters that the optimizer holds now."""
        self.end()
        self._begin()

    def record(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the recorded result, or `NotImplemented` if the host computes it."""
        self._alone = self._alone or any(parameter_of(each) is not None for each in self._parameters)
        return record_on_weights(func, args, kwargs) if self._alone else NotImplemented

    def capture(self, weights: Sequence[torch.Tensor]) -> bool:
        """Capture weights of a loss that calls no model, and return whether the optimizer was captured for that."""
        if self._setup is not None:
            capture_weights(weights, self._setup)
        return self._setup is not None

    def keep(self, model: Any) -> None:
        """Keep a captured model of parameters that are no module's as long as the optimizer that trains them."""
        self._kept.append(model)

    def _bring_nothing(self, brings: bool) -> None:
        """Leave the weights: the host has the only ones."""

    def end(self) -> None:
        self._accesses.ended = True
        unwatch_tensors(self._parameters, always=False)
        for each in self._plain:
            if type(each) is nn.Parameter:
                object.__setattr__(each, "__class__", torch.Tensor)


@brief_refusals
def _step(self: torch.optim.Optimizer, closure: Any = None) -> Any:
    known = self.__dict__.get(MODEL)
    last: Optional[FusedUpdate] = None if known is None else known()
    if last is not None and last.loop.steady is not None and closure is None:
        try:
            if last.loop.steady.step(self):
                return None
        except (CaptureError, OptimizerError) as error:
            return _leave_device(self, last.loop, None, HooksBefore(self), error)
    update = None if last is None else known_update(self)
    if update is None:
        if WATCH not in self.__dict__:  # it was given back, and a function of the script's calls this method
            return type(self).step(self) if closure is None else type(self).step(self, closure)
        on_host = self.__dict__[WATCH].gather_on_host()
        if on_host:
            return _step_on_host(self, on_host, closure)
        if closure is None or not _awaits_models(self):
            update, on_host = _captured(self)
        if on_host:
            return _step_on_host(self, on_host, closure)
    if update is None:
        found = type(self).step(self) if closure is None else _step_that_captures(self, closure)
        note_step(self)
        return found
    return _step_on_device(self, update, closure)


def _step_on_device(self: torch.optim.Optimizer, update: FusedUpdate, closure: Any) -> Any:
    """Make a step on the device, or on the host if it is refused there or a hook before it leaves the device."""
    hooks = HooksBefore(self)
    try:
        if closure is not None:
            raise CaptureError(
                "optimizer.step(closure) evaluates the loss several times, which a compiled step cannot. Call backward "
                f"and then step() without a closure. {ON_THE_HOST}"
            )
        if update.training.optimizer is not self:
            update.use(self)
    except (CaptureError, OptimizerError) as error:
        return _leave_device(self, update.loop, closure, hooks, error)
    # Once there is a device's optimizer, one hook of this library's guards the step of the host.
    if GLOBAL_PRE_HOOKS or len(pre_hooks_of(self)) > (update.training.trained is not None):
        refusal = hooks.call()
        on_host = self.__dict__[WATCH].gather_on_host()
        if on_host:
            with hooks.as_called():
                return _step_on_host(self, on_host, None)
        if refusal is not None:
            return _leave_device(self, update.loop, None, hooks, refusal)
    try:
        update.step()
    except (CaptureError, OptimizerError) as error:
        return _leave_device(self, update.loop, None, hooks, error)
    after = post_hooks_of(self)
    if after or GLOBAL_POST_HOOKS:
        for hook in of_scripts(after, GLOBAL_POST_HOOKS):
            hook(self, (self,), {})
    return None


def _leave_device(self: torch.optim.Optimizer, loop: Loop, closure: Any, before: HooksBefore, error: Exception) -> Any:
    """Make a step and all later ones on the host, for an error of the device's; raise it if that is not allowed."""
    if not loop.now.updates.may_leave:
        raise error
    loop.now.updates.leave_device(str(error), error)
    with before.as_called():
        return _step_on_host(self, self.__dict__[WATCH].gather_on_host(), closure)


def _step_on_host(self: torch.optim.Optimizer, on_host: Sequence[HostUpdates], closure: Any) -> Any:
    if LOST and closure is None:  # a closure clears gradients first
        refuse_lost(held_tensors(self))
    with contextlib.ExitStack() as stack:
        for each in on_host:
            wrapped = stack.enter_context(each.stepping(self))
            closure = None if closure is None else wrapped(closure)
        return type(self).step(self) if closure is None else type(self).step(self, closure)


def _step_that_captures(self: torch.optim.Optimizer, closure: Any) -> Any:
    """Make a step on the host, in whose closure models may be called, and so captured, for the first time."""
    with contextlib.ExitStack() as stack:
        calls = [closure]

        def call() -> Any:
            before = self.__dict__[WATCH].gather_on_host()
            loss = calls[-1]()
            for owner in () if before or len(calls) > 1 else owners_of(held_tensors(self)):
                owner.loop.updates.leave_device(f"step() at {current_line()} evaluates the loss by a closure.")
            if len(calls) == 1:
                for each in self.__dict__[WATCH].gather_on_host():
                    calls.append(stack.enter_context(each.stepping(self))(calls[-1]))
            return loss

        return type(self).step(self, call)


def _zero_grad(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    known = self.__dict__.get(MODEL)
    last: Optional[FusedUpdate] = None if known is None else known()
    if set_to_none and last is not None and last.loop.steady is not None and last.loop.steady.clear(self):
        return
    update = None if last is None else known_update(self)
    if update is not None:
        update.zero_grad(self, set_to_none)
        return
    if WATCH not in self.__dict__:
        type(self).zero_grad(self, set_to_none)
        return
    on_host = self.__dict__[WATCH].gather_on_host()
    if not (on_host or _are_apart(self)):
        update, on_host = _captured(self)
    if on_host and set_to_none and type(self).zero_grad is torch.optim.Optimizer.zero_grad:
        with DisableTorchFunctionSubclass():  # as PyTorch's method does, but without an access to watched parameters
            for parameter in held_tensors(self):
                set_gradient(parameter, None)
        return
    if on_host:
        with contextlib.ExitStack() as stack:
            for each in on_host:
                stack.enter_context(HostStep(each.training.session.weights.detector))
            type(self).zero_grad(self, set_to_none)
        return
    if update is None:
        type(self).zero_grad(self, set_to_none)
        return
    update.zero_grad(self, set_to_none)
    if update.loop.updates.on_host:
        return
    if update.training.optimizer is not self:
        # Its update comes next, and how it is clipped is said before.
        update.follow(self)


def _captured(optimizer: torch.optim.Optimizer) -> Tuple[Optional[FusedUpdate], Sequence[HostUpdates]]:
    """Return the update by an optimizer, or the host's if the optimizer is a reason to leave the device; or neither."""
    update = captured_by(optimizer)
    return update, () if update is not None else optimizer.__dict__[WATCH].gather_on_host()


def _are_apart(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer holds weights of several loops, none of which was trained.

    Parts of a model may have been called before it, as parametrizations are: nothing joins them yet.
    """
    owners = set() if MODEL in optimizer.__dict__ else owners_of(held_tensors(optimizer))
    return len(owners) > 1 and all(is_untrained(owner.loop) for owner in owners)


def _awaits_models(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether only parts of the models were called whose weights an optimizer holds, and nothing was trained."""
    if not optimizer.__dict__[WATCH].awaits_models:
        return False
    held = held_tensors(optimizer)
    loops = {owner.loop for owner in owners_of(held)}
    known = {id(each) for loop in loops for each in all_parameters(loop.module)}
    return all(is_untrained(loop) for loop in loops) and not known.issuperset(map(id, held))


def _add_param_group(self: torch.optim.Optimizer, param_group: Dict[str, Any]) -> None:
    update = trained_by(self)
    if update is not None:
        update.training.forget_program()
    type(self).add_param_group(self, param_group)
    if WATCH in self.__dict__:
        self.__dict__[WATCH].renew()
    if update is not None and not update.makes_all:
        update.train_held()


# Schedulers wrap the step of their optimizer to detect its calls, and warn when they find another one. The link to the
# device's optimizer reports calls instead.
for _mark in marks_of_step():
    setattr(_step, _mark, True)
