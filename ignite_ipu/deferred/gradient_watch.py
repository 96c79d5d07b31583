"""Refuses to look at gradients on the host: they exist on the device alone, and `parameter.grad` would be None.

Without it, torch's own clipping in a captured loop would silently clip nothing.
"""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager

import torch
from torch import overrides

from ignite_ipu.deferred.errors import CaptureError, current_line, shown

__all__ = ["GradientWatch", "unwatched"]

_DESCRIPTOR: Any = torch.Tensor.grad
_GRADIENT = _DESCRIPTOR.__get__


class GradientWatch(overrides.TorchFunctionMode):
    """Context in which asking for the gradient of a captured parameter is an error.

    Args:
        remedy: What to do to clip gradients.
    """

    def __init__(self, remedy: str) -> None:
        super().__init__()
        self._remedy = remedy

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "__get__" and func == _GRADIENT:
            from ignite_ipu.deferred.model import parameter_of

            if parameter_of(args[0]) is not None:
                raise CaptureError(
                    f"The gradient of a parameter is asked for at {shown(current_line())}, but gradients exist on the "
                    f"device alone. To clip them, {self._remedy}."
                )
        return func(*args, **(kwargs or {}))


def unwatched() -> ContextManager[Any]:
    """Return a context in which the innermost watch costs nothing: the device's own work looks at no gradients."""
    innermost: Any = overrides._get_current_function_mode  # absent from torch's type annotations
    mode = innermost()
    return overrides._pop_mode_temporarily() if isinstance(mode, GradientWatch) else contextlib.nullcontext()
