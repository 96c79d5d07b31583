"""Owner of a call: the script, a library that the script called, or a library by itself."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from types import FrameType
from typing import Optional, Tuple

from ignite_ipu.program.user_code import Owner, is_users_file, owner_of

__all__ = ["Line", "ScriptCode"]

Line = Tuple[str, int]
"""File and number of a line."""


class ScriptCode:
    """The files that are the script's own: itself, and what lies beside it or below.

    Args:
        path: The script.
        folder: Where its own modules lie, when that is not beside it.
    """

    def __init__(self, path: str, folder: Optional[str] = None) -> None:
        self.path = os.path.abspath(path)
        self._folder = os.path.join(os.path.dirname(self.path) if folder is None else folder, "")
        self.owns = lru_cache(maxsize=None)(self._owns)

    def _owns(self, file: str) -> bool:
        """Tell whether a file is the script's own."""
        file = os.path.abspath(file)
        return file == self.path or (file.startswith(self._folder) and is_users_file(file))

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
            if owner_of(file) is not Owner.LIBRARY:
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
