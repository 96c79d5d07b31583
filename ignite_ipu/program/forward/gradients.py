"""Gradients in a model that is trained, which are the device's alone: hooks on them, and backwards of functions' own.

No hook ever sees a gradient. PopTorch differentiates the forward operators of a custom `autograd.Function` by itself,
and its own backward never runs. So a gradient that is reversed, scaled or passed straight through would silently be
another one. Functions of PyTorch and transformers are left alone: theirs are the derivatives of their forwards,
computed in less memory.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple
from unittest import mock

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction

from ignite_ipu import backend
from ignite_ipu.capabilities.traced import OWN_BACKWARD
from ignite_ipu.errors import LossError, listed
from ignite_ipu.program.function_mode import FunctionGuard
from ignite_ipu.program.tensors.trees import tensors_in
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.modules import BACKWARD_HOOKS, all_named_modules, all_named_parameters, global_hooks
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, gradient_hooks_of

_DERIVATIVES = ("torch", "transformers")

_ON_ALL = global_hooks(*BACKWARD_HOOKS)
_REGISTER = [
    getattr(torch.Tensor, name)
    for name in ("register_hook", "register_post_accumulate_grad_hook")
    if hasattr(torch.Tensor, name)
]
_REMEDY = (
    "which would never run: gradients exist on the device alone. To clip them, use max_grad_norm or clip_grad_norm_; "
    "to keep some of a weight as it is, compute with a part that is detached; to scale them, use a parameter group "
    "with its own learning rate; to look at them in an Ignite engine, ignite_ipu.handlers.Gradients. Remove the hooks."
)


class GradientHookGuard(FunctionGuard):
    """Context in which a model's forward that registers a hook on a gradient raises `LossError`."""

    def concerns(
        self, func: Callable[..., Any], tensors: List[torch.Tensor], args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> bool:
        return func in _REGISTER

    def check(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        if func in _REGISTER:
            shape = tuple(args[0].shape)
            raise LossError(f"The model's forward calls {func.__name__}() on a tensor of shape {shape}, {_REMEDY}")


def problem_of_hooks(model: nn.Module, of_parameters: bool = True) -> Optional[str]:
    """Return why a model cannot be trained with its hooks, None if it has none on gradients.

    Those `of_parameters` can be called where gradients come back to the host.
    """
    with DisableTorchFunctionSubclass():
        named = all_named_parameters(model) if of_parameters else ()
        names = [name for name, tensor in named if gradient_hooks_of(tensor)]
    for path, module in all_named_modules(model):
        if any(map(module.__dict__.get, BACKWARD_HOOKS)):
            names.append(path or "the model")
    names += ["all modules"] if any(_ON_ALL) else []
    return f"Hooks on gradients are registered on {listed(names)}, {_REMEDY}" if names else None


@contextlib.contextmanager
def own_backwards_refused() -> Iterator[None]:
    """Let an `autograd.Function` raise `LossError` in the `with` block, where gradients are to flow through it.

    A script may have `Function.apply` by another name (`binarize = Binarize.apply`). That is a method of PyTorch's own,
    which calls what the class has for its forward, and for its context.
    """
    original = torch.autograd.Function.__dict__["apply"]

    def called(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if _has_own_backward(cls) and torch.is_grad_enabled():
            _refuse(cls)
        return original.__get__(None, cls)(*args, **kwargs)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.autograd.Function, "apply", classmethod(called)))
        for cls in filter(_has_own_backward, functions_of_autograd()):
            takes_context = cls.setup_context is torch.autograd.Function.setup_context
            name = "forward" if takes_context else "setup_context"
            stack.enter_context(mock.patch.object(cls, name, staticmethod(_unless_differentiated(cls, name))))
        yield


def _unless_differentiated(cls: Any, name: str) -> Callable[..., Any]:
    """Return the method of a function that takes its context first, refused where gradients flow through that."""
    method = getattr(cls, name)

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        # PyTorch's own `apply` has disabled gradients by now, which the code around it may have done, too.
        applied = args and isinstance(args[0], BackwardCFunction)
        if applied and any(each.requires_grad for each in tensors_in(args[1:])):
            _refuse(cls)
        return method(*args, **kwargs)

    return called


def _refuse(cls: Any) -> None:
    if backend.poptorch().isRunningOnIpu():
        raise LossError(f"{current_line()}: {OWN_BACKWARD.refusal(cls.__name__)}")


def _has_own_backward(cls: Any) -> bool:
    """Return whether a function may pass other gradients than the derivatives of its forward."""
    if cls.__module__.partition(".")[0] in _DERIVATIVES:  # as most, which are asked before each trace
        return False
    function = torch.autograd.Function
    return cls.backward is not function.backward or cls.vjp is not function.vjp


def functions_of_autograd() -> List[Any]:
    """Return the classes of `autograd.Function` that the process has."""
    found: List[Any] = torch.autograd.Function.__subclasses__()
    for each in found:
        found += each.__subclasses__()
    return found
