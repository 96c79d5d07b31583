"""Whose code makes a call: the script's, a library's that the script called, or a library's own."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache
from types import FrameType
from typing import Optional, Tuple

import torch

__all__ = ["Line", "ScriptCode"]

Line = Tuple[str, int]
"""File and number of a line."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
# What these do with a device, they do with the one that they were given.
_OBEDIENT = tuple(f"{place}{name}{os.sep}" for place in _INSTALLED for name in ("torch", "ignite", "accelerate"))


class ScriptCode:
    """The files that are the script's own: itself, and what lies beside it or below.

    Args:
        path: The script.
        folder: Where its own modules lie, when that is not beside it.
    """

    def __init__(self, path: str, folder: Optional[str] = None) -> None:
        self.path = os.path.abspath(path)
        self._folder = os.path.join(os.path.dirname(self.path) if folder is None else folder, "")
        self._python = tuple({sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib")})
        self.owns = lru_cache(maxsize=None)(self._owns)

    def _owns(self, file: str) -> bool:
        """Tell whether a file is the script's own."""
        file = os.path.abspath(file)
        if file == self.path:
            return True
        if not file.startswith(self._folder) or file.startswith((_PACKAGE, _TORCH, *self._python)):
            return False
        return not any(part in file for part in _INSTALLED)

    def line_of(self, frame: Optional[FrameType]) -> Optional[Line]:
        """Return the line of a frame that is the script's own, None for another's."""
        if frame is None or not self.owns(frame.f_code.co_filename):
            return None
        return frame.f_code.co_filename, frame.f_lineno

    def line_behind(self, frame: Optional[FrameType]) -> Tuple[Optional[Line], bool]:
        """Return who stands behind a call that torch, Ignite or this package may have passed on.

        Returns:
            The line, and whether it is the script's own.
        """
        while frame is not None:
            file = frame.f_code.co_filename
            if self.owns(file):
                return (file, frame.f_lineno), True
            if not _passes_on(file):
                return (file, frame.f_lineno), False
            frame = frame.f_back
        return None, False

    def current_line(self) -> Optional[Line]:
        """Return the innermost line of the script that is running, None outside of it."""
        frame: Optional[FrameType] = sys._getframe(1)
        while frame is not None:
            line = self.line_of(frame)
            if line is not None:
                return line
            frame = frame.f_back
        return None


@lru_cache(maxsize=None)
def _passes_on(file: str) -> bool:
    if file.startswith((_PACKAGE, _TORCH, "<frozen")):
        return True
    return any(part in file for part in _OBEDIENT)
