"""Hooks before and after `optimizer.step()`, which is not called where the device updates the weights itself."""

from __future__ import annotations

import abc
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from ignite_ipu.errors import OptimizerError
from ignite_ipu.program.function_mode import FunctionGuard
from ignite_ipu.program.tensors.raw import GRADIENT
from ignite_ipu.torch_names.optimizers import GLOBAL_POST_HOOKS, GLOBAL_PRE_HOOKS, post_hooks_of, pre_hooks_of

_OURS = "ignite_ipu."
_SCHEDULERS = "torch.optim."
_TOUCHES_GRADIENTS = (GRADIENT.__get__, GRADIENT.__set__)


class CallHook(abc.ABC):
    """A hook around `optimizer.step()` that also serves device calls of several updates, by one call of `of_call`."""

    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.of_call(optimizer, 1)

    @abc.abstractmethod
    def of_call(self, optimizer: torch.optim.Optimizer, updates: int) -> None:
        """Follow a device call that makes a number of updates."""


class StepHooks:
    """Calls the hooks of a user's optimizer around the device call that makes its update.

    The optimizer has one hook of this library's, which refuses `step()` on the host.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._before: Dict[Any, Callable[..., Any]] = pre_hooks_of(optimizer)
        self._after: Dict[Any, Callable[..., Any]] = post_hooks_of(optimizer)
        self._known_step: Any = None
        self._updates = 1

    def before(self, updates: int, written: Callable[[], bool]) -> None:
        """Call the hooks before an update; `written` returns whether weights were written since its last call."""
        step = self._optimizer.__dict__.get("step")
        if step is not self._known_step:
            function = replaced_method(self._optimizer, "step")
            if function is not None:
                raise OptimizerError(
                    f"step of this {self._name} was replaced by {called(function)}, which would never be called: "
                    "the weights are updated on the device within each training call. Remove it. Code after each "
                    "update belongs in optimizer.register_step_post_hook or a handler of the trainer."
                )
            self._known_step = step
        if not (len(self._before) > 1 or self._after or GLOBAL_PRE_HOOKS or GLOBAL_POST_HOOKS):
            return
        before, self._updates = of_scripts(GLOBAL_PRE_HOOKS, self._before), updates
        if updates > 1:
            self._refuse_several(before, updates)
        if before:
            written()  # by the loop
        for hook in before:
            if self._call(hook) is not None:
                raise OptimizerError(
                    f"The hook {called(hook)} before {self._name}.step() returned other arguments for it, but the "
                    "update of a device takes none. Let it return None."
                )
            if written():
                raise OptimizerError(
                    f"The hook {called(hook)} before {self._name}.step() wrote into weights, between the gradients "
                    "and the update, which are one call of the device. Write into them after the update: "
                    "optimizer.register_step_post_hook."
                )

    def after(self) -> None:
        if self._after or GLOBAL_POST_HOOKS:
            for hook in of_scripts(self._after, GLOBAL_POST_HOOKS):
                self._call(hook)

    @property
    def _name(self) -> str:
        return type(self._optimizer).__name__

    def _call(self, hook: Callable[..., Any]) -> Any:
        with _GradientsRefused(self._optimizer, hook):
            if isinstance(hook, CallHook):
                return hook.of_call(self._optimizer, self._updates)
            return hook(self._optimizer, (self._optimizer,), {})

    def _refuse_several(self, before: List[Callable[..., Any]], updates: int) -> None:
        every = [*before, *of_scripts(self._after, GLOBAL_POST_HOOKS)]
        hooks = [hook for hook in every if not isinstance(hook, CallHook)]
        if hooks:
            raise OptimizerError(
                f"The hook {called(hooks[0])} is registered around {self._name}.step(), but each device call makes "
                f"{updates} updates (deviceIterations {updates}), between which no Python runs. Use "
                "device_iterations=1, or remove the hook."
            )


class _GradientsRefused(FunctionGuard):
    """Context in which a hook that looks for gradients of an optimizer's parameters raises `OptimizerError`."""

    def __init__(self, optimizer: torch.optim.Optimizer, hook: Callable[..., Any]) -> None:
        super().__init__()
        self._optimizer, self._hook = optimizer, hook

    def check(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        if func in _TOUCHES_GRADIENTS:
            for group in self._optimizer.param_groups:
                if any(each is args[0] for each in group["params"]):
                    raise OptimizerError(
                        f"The hook {called(self._hook)} around {type(self._optimizer).__name__}.step() uses the "
                        f"gradient of a parameter of shape {tuple(args[0].shape)}, but gradients exist on the device "
                        "alone. To clip them, use max_grad_norm; to look at them, ignite_ipu.handlers.Gradients."
                    )


def replaced_method(optimizer: torch.optim.Optimizer, name: str) -> Optional[Callable[..., Any]]:
    """Return the function that a script has put on an optimizer in place of a method of its class, if it has.

    Schedulers wrap `step` to learn whether it was called.
    """
    method = optimizer.__dict__.get(name)
    function: Any = getattr(method, "__func__", method)
    while function is not None and function is not getattr(type(optimizer), name):
        module = getattr(function, "__globals__", {}).get("__name__", "")
        if module.startswith(_OURS):
            return None
        if not module.startswith(_SCHEDULERS) or not hasattr(function, "__wrapped__"):
            return function  # type: ignore[no-any-return]
        function = function.__wrapped__
    return None


def of_scripts(*hooks: Dict[Any, Callable[..., Any]]) -> List[Callable[..., Any]]:
    """Return the hooks that are not this library's."""
    found = [hook for some in hooks for hook in some.values()]
    return [hook for hook in found if not getattr(hook, "__module__", "").startswith(_OURS)]


def called(function: Callable[..., Any]) -> str:
    """Return the name of a function in messages."""
    return f"{getattr(function, '__qualname__', type(function).__qualname__)}()"
