"""Where the user's code stood when something was recorded."""

from __future__ import annotations

import dis
import functools
import importlib.util
import os
import site
import sys
import sysconfig
from types import CodeType, FrameType, FunctionType
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

__all__ = ["OURS", "Line", "current_line", "found_instead", "is_installed", "is_users_file"]

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


@functools.lru_cache(maxsize=None)
def is_installed(file: str) -> bool:
    """Tell whether a file of code belongs to a library."""
    return os.path.abspath(file).startswith(_FOLDERS)


def is_users_file(file: str) -> bool:
    """Tell whether a file of code is the user's own; code without a file, as in a notebook, is, too."""
    return not file.startswith("<frozen") and not is_installed(file)


def found_instead(package: str) -> Optional[str]:
    """Return the user's own file that Python imports under the name of a package; None when there is none."""
    module = sys.modules.get(package)
    spec = getattr(module, "__spec__", None) if module is not None else importlib.util.find_spec(package)
    file = None if spec is None else spec.origin
    return file if file is not None and is_users_file(file) else None


def _folders() -> List[str]:
    paths = sysconfig.get_paths()
    found = [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]]
    found += [*site.getsitepackages(), site.getusersitepackages(), os.path.dirname(torch.__file__)]
    # In a virtual environment the standard library is elsewhere.
    return [*found, os.path.dirname(os.__file__), OURS]


_FOLDERS = tuple(os.path.abspath(folder) + os.sep for folder in _folders())
