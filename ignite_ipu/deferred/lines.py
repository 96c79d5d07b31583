"""Where the user's code stood when something was recorded."""

from __future__ import annotations

import dis
import functools
import os
import sys
from types import CodeType, FrameType, FunctionType
from typing import Any, Callable, Mapping, Optional, Sequence, Tuple

import torch

__all__ = ["Line", "current_line"]

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_NOT_THE_USERS = (_OURS, _TORCH, "<frozen")
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


def current_line() -> Line:
    """Return the line of the innermost frame that is the user's own code; the outermost line where none is."""
    frame: FrameType = sys._getframe(1)
    while not _is_users(frame.f_code.co_filename):
        outer: Optional[FrameType] = frame.f_back
        if outer is None:
            break
        frame = outer
    return Line((frame.f_code, frame.f_lasti))


@functools.lru_cache(maxsize=None)
def _is_users(file: str) -> bool:
    if file.startswith(_NOT_THE_USERS) or any(library in file for library in _LIBRARIES):
        return False
    return not file.startswith(_STANDARD) or "site-packages" in file
