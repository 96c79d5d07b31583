"""Code of PyTorch's that is being run, or asks for something, as Python's stack tells."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType
from typing import Any, Callable, Optional, Sequence

import torch
from torch.distributions import ContinuousBernoulli, Distribution, Geometric, Uniform

from ignite_ipu.deferred.graph.operations import Value
from ignite_ipu.errors import CaptureError, logger
from ignite_ipu.program.forward.gradients import OWN_BACKWARD
from ignite_ipu.program.user_code import OURS, current_line

DISTRIBUTIONS = os.path.dirname(torch.distributions.__file__) + os.sep
"""Folder of PyTorch's distributions."""
_TRANSFORMS = os.path.join(os.path.dirname(torch.__file__), "_functorch") + os.sep  # those of torch.func

# All of these ask whether all values are valid, if anything.
_ARGUMENT_CHECKS = (
    Distribution.__init__.__code__,
    Distribution._validate_sample.__code__,
    ContinuousBernoulli.__init__.__code__,
    Geometric.__init__.__code__,
    Uniform.__init__.__code__,
)
_APPLY: Any = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]
# PyTorch 2.0 compiles a scripted function for what its first call was given, and crashes with tensors without memory.
_SCRIPTS_CRASH = torch.__version__.startswith("2.0.")


def frame_of(code: CodeType) -> Optional[FrameType]:
    """Return the innermost frame that runs this code, None where none does."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


def called_by(folder: str) -> bool:
    """Tell whether code in a folder called what is being run."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(folder):
        frame = frame.f_back
    return frame is not None


def is_argument_check() -> bool:
    """Tell whether what called this library is the check of a distribution's parameters or of a sample."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return frame is not None and frame.f_code in _ARGUMENT_CHECKS


def refuse_function(values_in: Callable[[Any], Sequence[Value]], arguments: Any) -> None:
    """Refuse an operation on values to come that depend on weights within the forward of an `autograd.Function`.

    PyTorch runs that without gradients, so none would flow through what is recorded.
    """
    frame = frame_of(_APPLY)
    if frame is not None and any(value.shape.requires_grad for value in values_in(arguments)):
        name = frame.f_locals["cls"].__name__
        raise CaptureError(
            f"{name}.apply() at {current_line()}: {OWN_BACKWARD.format(name=name)} To compute the value alone, apply "
            "it to x.detach()."
        )


def refuse_script() -> None:
    """Refuse a call from C++ that is no transform's: a scripted function's, with which PyTorch 2.0 crashes."""
    if _SCRIPTS_CRASH and not called_by(_TRANSFORMS):
        error = CaptureError(
            f"A function of TorchScript is called at {current_line()} with a value of the training step, and PyTorch "
            f"{torch.__version__} would end the process at its next call. Leave torch.jit.script out, or call the "
            "function within the model's forward."
        )
        # TorchScript raises an error of its own, without this text.
        logger.error("%s", error)
        raise error
