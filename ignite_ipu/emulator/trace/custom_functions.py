"""Code of the user's for the backward pass, in a trace: the device has a backward pass of its own, and runs none of it.

It differentiates the forward of a custom `autograd.Function`, and modules' backward hooks are not called.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Tuple

import torch
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.hooks import BackwardHook

from ignite_ipu.emulator.trace.active import active
from ignite_ipu.emulator.trace.explanations import checkpoint_refused
from ignite_ipu.emulator.trace.isolation import replaced


@contextlib.contextmanager
def forward_only() -> Iterator[None]:
    """Make `Function.apply` run nothing but the forward in the `with` block, in the thread that traces.

    Modules set no backward hooks up there either.
    """
    original = torch.autograd.Function.__dict__["apply"]
    set_up_hook: Any = BackwardHook._apply_on_tensors

    def called(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if active() is None:
            return original.__get__(None, cls)(*args, **kwargs)
        return _apply(cls, *args, **kwargs)

    def set_up(hook: BackwardHook, function: Any, args: Any) -> Any:
        return set_up_hook(hook, function, args) if active() is None else (args, None)

    with replaced(torch.autograd.Function, "apply", classmethod(called)):
        with replaced(BackwardHook, "_apply_on_tensors", set_up):
            yield


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    if cls is CheckpointFunction and torch.is_grad_enabled():
        raise checkpoint_refused()  # its forward takes no gradients: those are of its backward, which never runs
    if cls.setup_context is not torch.autograd.Function.setup_context:
        return cls.forward(*args, **kwargs)
    return cls.forward(_Context(), *args, **kwargs)


class _Context:
    """Takes what a forward wants to keep for the backward."""

    saved_tensors: Tuple[torch.Tensor, ...] = ()
    needs_input_grad: Tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: torch.Tensor) -> None:
        self.saved_tensors = tensors

    def mark_dirty(self, *tensors: torch.Tensor) -> None:
        return None

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        return None

    def set_materialize_grads(self, value: bool) -> None:
        return None
