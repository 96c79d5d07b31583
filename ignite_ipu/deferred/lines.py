"""Where the user's code stood when something was recorded."""

from __future__ import annotations

import dis
import os
import sys
from types import CodeType, FrameType, FunctionType
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

import torch

__all__ = ["OURS", "Line", "current_line"]

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""Where this library's files are."""

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_NOT_THE_USERS = (OURS, _TORCH, "<frozen")
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_LIBRARIES = tuple(f"{os.sep}site-packages{os.sep}{name}{os.sep}" for name in ("accelerate", "ignite", "torch"))
_CALL = compile("function(*args, **kwargs)", "", "eval")


class Line(Tuple[CodeType, int]):
    """A line of code, as the code and the instruction's place in it.

    Its number is found when a message names it, for which Python searches the whole function.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return f"{self[0].co_filename}:{self._number()}"

    def call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function as if it stood at this line, for compilers and tracebacks that name the line of a call."""
        here = _CALL.replace(co_filename=self[0].co_filename, co_name=self[0].co_name, co_firstlineno=self._number())
        return FunctionType(here, {"function": function, "args": args, "kwargs": kwargs})()

    def _number(self) -> int:
        code, instruction = self
        number = code.co_firstlineno
        for start, line in dis.findlinestarts(code):
            if start <= instruction:
                number = line or number
        return number


def current_line(above: int = 0) -> Line:
    """Return the line of the innermost frame that is the user's own code; the outermost line where none is.

    Args:
        above: How many of the calls that led here are known to be this library's, and need no look.
    """
    frame: FrameType = sys._getframe(above)
    outer: Optional[FrameType] = frame.f_back
    while outer is not None:
        frame = outer
        if _USERS[frame.f_code.co_filename]:
            break
        outer = frame.f_back
    return Line((frame.f_code, frame.f_lasti))


class _Users(Dict[str, bool]):
    """Whether files are the user's, found out when one is asked for the first time."""

    def __missing__(self, file: str) -> bool:
        library = file.startswith(_NOT_THE_USERS) or any(name in file for name in _LIBRARIES)
        self[file] = not library and (not file.startswith(_STANDARD) or "site-packages" in file)
        return self[file]


_USERS = _Users()
