"""Whether some code of PyTorch's is being run, or asks for something, as Python's stack tells."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType
from typing import Optional

import torch
from torch.distributions import ContinuousBernoulli, Distribution, Geometric, Uniform

from ignite_ipu.program.user_code import OURS

__all__ = ["DISTRIBUTIONS", "TRANSFORMS", "called_by", "frame_of", "is_argument_check"]

DISTRIBUTIONS = os.path.dirname(torch.distributions.__file__) + os.sep
TRANSFORMS = os.path.join(os.path.dirname(torch.__file__), "_functorch") + os.sep
"""Where PyTorch's distributions and the transforms of torch.func are."""

# All of these ask whether all values are valid, if anything.
_ARGUMENT_CHECKS = (
    Distribution.__init__.__code__,
    Distribution._validate_sample.__code__,
    ContinuousBernoulli.__init__.__code__,
    Geometric.__init__.__code__,
    Uniform.__init__.__code__,
)


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
