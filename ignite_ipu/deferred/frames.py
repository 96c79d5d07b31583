"""Whether some function of PyTorch's is being run, by its code on Python's stack."""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Optional

__all__ = ["frame_of"]


def frame_of(code: CodeType) -> Optional[FrameType]:
    """Return the innermost frame that runs this code, None where none does."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame
