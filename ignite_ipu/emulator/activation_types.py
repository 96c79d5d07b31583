"""Layers that compute in the type of their activation, whatever that of their weights is, as they do on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Tuple

import torch

if TYPE_CHECKING:
    from ignite_ipu.emulator.capture import Capture

__all__ = ["followed"]

_LAYERS = frozenset(
    (
        "linear",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "bilinear",
    )
)


def followed(
    capture: Capture, name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Return an operator's arguments with weight and bias cast to the activation's type, if it is such a layer."""
    if name not in _LAYERS:
        return args, kwargs
    activation = args[0] if args else kwargs["input"]
    dtype = capture._to_traced(activation).meta.dtype

    def follow(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            traced = capture._to_traced(value)
            if traced.meta.dtype != dtype and traced.meta.is_floating_point() and dtype.is_floating_point:
                return capture.record(torch.Tensor.to, traced, dtype)
        return value

    return tuple(follow(arg) for arg in args), {key: follow(value) for key, value in kwargs.items()}
