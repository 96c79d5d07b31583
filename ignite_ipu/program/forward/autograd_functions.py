"""Custom `autograd.Function`s in a model that is trained: PopTorch differentiates their forward operators by itself.

Their own backward never runs, so a gradient that is reversed, scaled or passed straight through would silently be
another one. Those of PyTorch and transformers are the derivatives of their forwards, computed in less memory.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import torch

from ignite_ipu import backend
from ignite_ipu.errors import LossError

__all__ = ["OWN_BACKWARD", "has_own_backward", "own_backwards_refused"]

OWN_BACKWARD = (
    "{name} is an autograd.Function with a backward of its own, which no IPU runs: the device differentiates the "
    "operators of its forward. Express it in torch operations whose derivatives are the gradients you mean (x.detach() "
    "passes none: x + (f(x) - x).detach() is f(x) with the gradient of x), or register a custom operator with "
    "poptorch.custom_op."
)

_DERIVATIVES = ("torch", "transformers")


@contextlib.contextmanager
def own_backwards_refused() -> Iterator[None]:
    """Let `Function.apply` raise `LossError` in the `with` block, where gradients are to flow through it in a trace."""
    original = torch.autograd.Function.__dict__["apply"]

    def called(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and has_own_backward(cls) and backend.poptorch().isRunningOnIpu():
            raise LossError(OWN_BACKWARD.format(name=cls.__name__))
        return original.__get__(None, cls)(*args, **kwargs)

    torch.autograd.Function.apply = classmethod(called)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = original  # type: ignore[method-assign]


def has_own_backward(kind: Any) -> bool:
    """Tell whether a subclass of `autograd.Function` may pass other gradients than the derivatives of its forward."""
    return kind.backward is not torch.autograd.Function.backward and kind.__module__.split(".")[0] not in _DERIVATIVES
