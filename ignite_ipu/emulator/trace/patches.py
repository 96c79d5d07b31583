"""Functions of PyTorch that behave otherwise while a model is traced, in the thread that traces it."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterator, Tuple

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.hooks import BackwardHook

from ignite_ipu.emulator.trace.active import active
from ignite_ipu.emulator.trace.isolation import replaced
from ignite_ipu.emulator.trace.refusals import checkpoint_refused


@contextlib.contextmanager
def module_calls_followed(enter: Callable[[nn.Module], None], leave: Callable[[nn.Module], None]) -> Iterator[None]:
    """Call `enter` before each call of a module in the `with` block and `leave` after it, also where it raises."""
    # PyTorch's hooks will not do: after a forward that raises, older versions call none, and newer ones not always.
    original: Any = nn.Module.__call__

    @functools.wraps(original)
    def called(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if active() is None:
            return original(module, *args, **kwargs)
        enter(module)
        try:
            return original(module, *args, **kwargs)
        finally:
            leave(module)

    with replaced(nn.Module, "__call__", called):
        yield


@contextlib.contextmanager
def range_noticed() -> Iterator[None]:
    """Let `torch.range` tell the running trace that it is called; it is the one factory that does not."""
    original = torch.range

    def called(*args: Any, **kwargs: Any) -> Any:
        trace = active()
        return original(*args, **kwargs) if trace is None else trace.call(original, args, kwargs)

    with replaced(torch, "range", called):
        yield


@contextlib.contextmanager
def forward_only() -> Iterator[None]:
    """Make `Function.apply` run nothing but the forward in the `with` block, and modules set no backward hooks up.

    The device has a backward pass of its own, which runs no code of the user's.
    """
    original = torch.autograd.Function.__dict__["apply"]
    set_up_hook: Any = BackwardHook._apply_on_tensors

    def called(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if active() is None:
            return original.__get__(None, cls)(*args, **kwargs)
        if cls is CheckpointFunction and torch.is_grad_enabled():
            raise checkpoint_refused()  # its forward takes no gradients: those are of its backward, which never runs
        if cls.setup_context is torch.autograd.Function.setup_context:
            args = (_Context(), *args)
        return cls.forward(*args, **kwargs)

    def set_up(hook: BackwardHook, function: Any, args: Any) -> Any:
        return set_up_hook(hook, function, args) if active() is None else (args, None)

    with replaced(torch.autograd.Function, "apply", classmethod(called)):
        with replaced(BackwardHook, "_apply_on_tensors", set_up):
            yield


class _Context:
    """Takes what a forward wants to keep for the backward."""

    saved_tensors: Tuple[torch.Tensor, ...] = ()
    needs_input_grad: Tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: torch.Tensor) -> None:
        self.saved_tensors = tensors

    def mark_dirty(self, *tensors: torch.Tensor) -> None:
        pass

    mark_non_differentiable = mark_dirty

    def set_materialize_grads(self, value: bool) -> None:
        pass
