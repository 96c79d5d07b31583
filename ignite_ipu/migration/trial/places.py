"""Places in the user's code."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any, Optional

from ignite_ipu.program.user_code import OURS, is_users_file


@dataclass(frozen=True)
class Place:
    """A line.

    Attributes:
        path: Absolute path of the file.
        line: From 1.
        where: The method or function, `Net.forward`.
    """

    path: str
    line: int
    where: str


def current_place() -> Optional[Place]:
    """Return the innermost line that runs now and is the user's; None when only libraries run."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _TRIAL:
        if is_users(frame.f_code.co_filename):
            return place_of(frame)
        frame = frame.f_back
    return None


def raised_at(error: BaseException) -> Optional[Place]:
    """Return the innermost line of the user's that an exception came through."""
    found = None
    link: Optional[TracebackType] = error.__traceback__
    while link is not None:
        if is_users(link.tb_frame.f_code.co_filename):
            found = place_of(link.tb_frame, link.tb_lineno)
        link = link.tb_next
    return found


def library_line(error: BaseException) -> str:
    """Return the innermost line outside torch and this package, as a message names it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(OURS)]
    last = frames[-1]
    return f"{os.path.basename(last.filename)}:{last.lineno}"


def definition_of(function: Any) -> Optional[Place]:
    """Return where a function or method is defined; None when that is no code of the user's."""
    code: Optional[CodeType] = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None or not is_users(code.co_filename):
        return None
    owner = type(getattr(function, "__self__", None))
    where = code.co_name if owner is type(None) else f"{owner.__name__}.{code.co_name}"
    return Place(os.path.abspath(code.co_filename), code.co_firstlineno, where)


def place_of(frame: FrameType, line: Optional[int] = None) -> Place:
    """Return a frame's place."""
    code = frame.f_code
    first = code.co_varnames[0] if code.co_argcount else ""
    owner = frame.f_locals.get(first) if first == "self" else None
    where = code.co_name if owner is None else f"{type(owner).__name__}.{code.co_name}"
    return Place(os.path.abspath(code.co_filename), line if line is not None else frame.f_lineno, where)


def is_users(file: str) -> bool:
    """Tell whether code is the user's own and has a file to be found in."""
    return not file.startswith("<") and is_users_file(file)


# Further out is who called this package: a script or a test.
_TRIAL = os.path.join(os.path.dirname(__file__), "trial.py")
