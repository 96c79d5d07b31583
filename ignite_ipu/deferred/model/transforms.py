"""Calls of a captured model that PyTorch transforms, which a program compiled for the model's own weights is not.

Neither is it what autocast makes of a call.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch
from torch.nn.utils import stateless

from ignite_ipu.deferred.graph.owners import Captured
from ignite_ipu.deferred.tensor.frames import frame_of
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.user_code import current_line

__all__ = ["refuse_transforms"]

# Behind torch.func.functional_call and its older names.
_REPLACES: Any = getattr(stateless, "_functional_call").__code__  # noqa: B009
_transform: Callable[[], Any] = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)


def _question(asks: Callable[..., bool]) -> Callable[[], bool]:
    """Return what tells whether autocast is on for the CPU, which versions of PyTorch ask in different ways."""
    try:
        asks("cpu")
    except TypeError:
        older: Callable[[], bool] = getattr(torch, "is_autocast_cpu_enabled")  # noqa: B009
        return older
    return functools.partial(asks, "cpu")


_autocasts = _question(torch.is_autocast_enabled)


def refuse_transforms(model: Captured) -> None:
    """Refuse a call of a model within a function of `torch.func`, or under autocast.

    Raises:
        CaptureError: It is one.
    """
    if _autocasts():
        raise CaptureError(
            f"{model.name} was called at {current_line()} under torch.autocast for the CPU, but its program is "
            "compiled with the number format of IPUAccelerator(mixed_precision=...), 'no' or 'fp16'; bfloat16, which "
            "PyTorch's autocast chooses, does not exist on an IPU. Leave it out, or use accelerator.autocast()."
        )
    if _transform() is not None:
        raise CaptureError(
            f"{model.name} was called at {current_line()} within a transform of torch.func (grad, vmap, jacrev, ...), "
            "which PyTorch makes of operations on the host; a compiled program has none. Transform a copy that is not "
            "captured, copy.deepcopy(model), or put what the transform computes into the model's forward."
        )
    if frame_of(_REPLACES) is not None:
        raise CaptureError(
            f"{model.name} was called at {current_line()} by functional_call, with other weights than its own, but its "
            "program is compiled for those on the device. Call a copy that is not captured, copy.deepcopy(model); or "
            "write the weights into the model with load_state_dict."
        )
