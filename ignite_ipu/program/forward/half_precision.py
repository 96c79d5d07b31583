"""`amp_mode="amp"`: which operations of a model run in half precision on the device.

The rule is fixed when a program is compiled. Matrix products and convolutions read their float32 inputs as float16,
multiply in half precision and return float32. Everything else stays float32: sums, softmax, normalisation, losses, and
the weights. So no second copy of the weights ("master weights") is needed. PopTorch computes such an operation in the
type of its activations, for any type of the weights.

A model that is in half precision already (`model.half()`) is left alone.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Dict, Tuple

import torch
import torch.nn.functional as F

from ignite_ipu import backend
from ignite_ipu.program.function_mode import FunctionContext

# Operation -> number of its first arguments that are activations; the others are weights and biases.
HALF_OPERATIONS: Dict[Any, int] = {
    F.linear: 1,
    F.conv1d: 1,
    F.conv2d: 1,
    F.conv3d: 1,
    F.conv_transpose1d: 1,
    F.conv_transpose2d: 1,
    F.conv_transpose3d: 1,
    torch.matmul: 2,
    torch.Tensor.matmul: 2,
    torch.Tensor.__matmul__: 2,
    torch.bmm: 2,
    torch.Tensor.bmm: 2,
    torch.mm: 2,
    torch.Tensor.mm: 2,
}


class HalfProducts(FunctionContext):
    """Context in which a model is traced by the rule of this module."""

    def call(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        activations = HALF_OPERATIONS.get(func, 0)
        if not activations:
            return func(*args, **kwargs)
        halved = [_half(argument) if place < activations else argument for place, argument in enumerate(args)]
        if not any(new is not old for new, old in zip(halved, args)):
            return func(*args, **kwargs)
        return func(*halved, **kwargs).float()


def in_half(wanted: bool) -> ContextManager[Any]:
    """Return a context for operations in half precision on an IPU, if they are wanted."""
    return HalfProducts() if wanted and backend.poptorch().isRunningOnIpu() else contextlib.nullcontext()


def _half(value: Any) -> Any:
    return value.half() if isinstance(value, torch.Tensor) and value.dtype is torch.float32 else value
