"""`autograd.Function`s of a loop that are applied to deferred values: their own backward never runs on a device."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import torch

from ignite_ipu.deferred.errors import CaptureError
from ignite_ipu.deferred.frames import frame_of
from ignite_ipu.deferred.graph import Value
from ignite_ipu.deferred.lines import current_line
from ignite_ipu.own_backwards import OWN_BACKWARD

__all__ = ["applied_function", "refuse_function"]

_APPLY: Any = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]


def applied_function() -> Optional[str]:
    """Return the name of the `autograd.Function` in whose forward this is, None outside of them."""
    frame = frame_of(_APPLY)
    return None if frame is None else str(frame.f_locals["cls"].__name__)


def refuse_function(name: str, values: Sequence[Value]) -> None:
    """Refuse an operation on values that depend on weights within the forward of an `autograd.Function`.

    PyTorch runs that without gradients, so none would flow through what is recorded.

    Raises:
        CaptureError: Some value does.
    """
    if any(value.shape.requires_grad and not value.known for value in values):
        raise CaptureError(
            f"{name}.apply() at {current_line()}: {OWN_BACKWARD.format(name=name)} To compute the value alone, apply "
            "it to x.detach()."
        )
