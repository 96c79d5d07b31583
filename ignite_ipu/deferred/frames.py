"""Whether some code of PyTorch's is being run, as Python's stack tells."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType
from typing import Optional

import torch

__all__ = ["called_by_distributions", "frame_of"]

_DISTRIBUTIONS = os.path.dirname(torch.distributions.__file__) + os.sep


def frame_of(code: CodeType) -> Optional[FrameType]:
    """Return the innermost frame that runs this code, None where none does."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


def called_by_distributions() -> bool:
    """Tell whether `torch.distributions` called what is being run."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(_DISTRIBUTIONS):
        frame = frame.f_back
    return frame is not None
