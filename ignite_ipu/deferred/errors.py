"""What can go wrong with a captured step, and where the user's code stood.

RuntimeError
 +-- CaptureError              a step that cannot be run as one device step
 |    +-- EarlyReadError       a value was asked for before it exists
 +-- IPUOutOfMemoryError       a program that does not fit
"""

from __future__ import annotations

import functools
import os
import sys
from types import FrameType
from typing import Optional, Tuple

import torch

__all__ = ["CaptureError", "EarlyReadError", "IPUOutOfMemoryError", "Line", "current_line", "shown"]

Line = Tuple[str, int]

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_NOT_THE_USERS = (_OURS, _TORCH, "<frozen")
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_LIBRARIES = tuple(f"{os.sep}site-packages{os.sep}{name}{os.sep}" for name in ("accelerate", "ignite", "torch"))


class CaptureError(RuntimeError):
    """A training step that cannot run as one device step."""


class EarlyReadError(CaptureError):
    """A value of the captured step was read before the step has run."""


class IPUOutOfMemoryError(RuntimeError):
    """A program or its data that do not fit the device.

    The message ends the way memory-retry helpers such as accelerate's `find_executable_batch_size` look for.
    """


def current_line() -> Line:
    """Return file and line of the innermost frame that is the user's own code."""
    frame: Optional[FrameType] = sys._getframe(1)
    line = ("<unknown>", 0)
    while frame is not None:
        file = frame.f_code.co_filename
        if _is_users(file):
            return file, frame.f_lineno
        line = (file, frame.f_lineno)
        frame = frame.f_back
    return line


@functools.lru_cache(maxsize=None)
def _is_users(file: str) -> bool:
    if file.startswith(_NOT_THE_USERS) or any(library in file for library in _LIBRARIES):
        return False
    return not file.startswith(_STANDARD) or "site-packages" in file


def shown(line: Line) -> str:
    """Return a line as messages name it."""
    return f"{line[0]}:{line[1]}"
