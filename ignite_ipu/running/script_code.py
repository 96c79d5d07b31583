"""A script's own lines, and the substitutions at them.

The script's own are all files that no package manager has installed: also those of a project in whose folder it is one
of many. Of a module that is run by its name they are those of its package, too. Its questions are answered as if there
were a GPU, and its lines are those that messages name. Training in an installed package is captured in the same way,
and its calls to a GPU are left out. But its query for a GPU gets the true answer: such a package may go on to use
features that an IPU lacks, and users cannot edit it.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from functools import lru_cache
from types import FrameType
from typing import Optional, Tuple

from ignite_ipu.program.user_code import Owner, is_users_file, owner_of

FileLine = Tuple[str, int]
"""File and number of a line."""

# Files of decorators of library functions, as for their deprecation.
_PASSING_ON = ("typing_extensions.py", "contextlib.py")


class ScriptCode:
    """The files that are the script's own: itself, and all that are installed in no packages.

    Args:
        path: The script; None for a program without a file, as that of `python -c`.
        package: Folder of an installed package whose files are the script's own, too: that of the module that is run.
    """

    def __init__(self, path: Optional[str], package: Optional[str] = None) -> None:
        self._package = package
        self.path = None if path is None else os.path.abspath(path)
        self._interactive = (
            ("<ipython-input", "<stdin>") if path is not None else ("<ipython-input", "<stdin>", "<string>")
        )
        self.owns = lru_cache(maxsize=None)(self._owns)

    def _owns(self, file: str) -> bool:
        if file.startswith("<"):
            return file.startswith(self._interactive)
        own = self._package is not None and os.path.abspath(file).startswith(self._package)
        return own or os.path.abspath(file) == self.path or is_users_file(file)

    def trains(self, file: str) -> bool:
        """Return whether a file is the script's own, or of an installed package that passes on no calls of others."""
        return self.owns(file) or owner_of(file) is Owner.INSTALLED

    def line_of(self, frame: Optional[FrameType], packages: bool = False) -> Optional[FileLine]:
        """Return the line of a frame that is the script's own, or an installed package's, too; None for another's."""
        if frame is None or not (self.trains if packages else self.owns)(frame.f_code.co_filename):
            return None
        return frame.f_code.co_filename, frame.f_lineno

    def line_behind(self, frame: Optional[FrameType]) -> Tuple[Optional[FileLine], bool]:
        """Return the line behind a call that a library may have passed on, and whether it is the script's own."""
        while frame is not None:
            file = frame.f_code.co_filename
            if self.owns(file):
                return (file, frame.f_lineno), True
            if owner_of(file) is not Owner.LIBRARY and not file.endswith(_PASSING_ON):
                return (file, frame.f_lineno), False
            frame = frame.f_back
        return None, False

    def current_line(self) -> Optional[FileLine]:
        """Return the innermost line of the script that is running, None outside of it."""
        frame: Optional[FrameType] = sys._getframe(1)
        while frame is not None:
            line = self.line_of(frame)
            if line is not None:
                return line
            frame = frame.f_back
        return None


@dataclasses.dataclass(frozen=True)
class Substitution:
    """Something in a script that means another thing on IPUs.

    Attributes:
        file, line: Where the script has it.
        original: The called object.
        became: Its substitute, in words.
    """

    file: str
    line: int
    original: str
    became: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}: {self.original} -> {self.became}"
