"""Functions of a loop that run in C++ or have a backward of their own, applied to deferred values."""

from __future__ import annotations

import logging
from typing import Any, Optional, Sequence

import torch

from ignite_ipu.deferred.graph.operations import Value
from ignite_ipu.deferred.tensor.frames import TRANSFORMS, called_by, frame_of
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.forward.autograd_functions import OWN_BACKWARD
from ignite_ipu.program.user_code import current_line

__all__ = ["applied_function", "refuse_function", "refuse_script"]

_logger = logging.getLogger("ignite_ipu")
_APPLY: Any = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]
# PyTorch 2.0 compiles a scripted function for what its first call was given, and crashes with tensors without memory.
_SCRIPTS_CRASH = torch.__version__.startswith("2.0.")


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


def refuse_script() -> None:
    """Refuse a call from C++ that is no transform's: a scripted function's, with which some versions of PyTorch crash.

    Raises:
        CaptureError: It is one, and this is such a version.
    """
    if _SCRIPTS_CRASH and not called_by(TRANSFORMS):
        error = CaptureError(
            f"A function of TorchScript is called at {current_line()} with a value of the training step, and PyTorch "
            f"{torch.__version__} would end the process at its next call. Leave torch.jit.script out, or call the "
            "function within the model's forward."
        )
        # TorchScript raises an error of its own, without this text.
        _logger.error("%s", error)
        raise error
