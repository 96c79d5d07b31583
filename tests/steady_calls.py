"""The calls of this package's functions in a steady iteration, which tests compare with the lists of these."""

from __future__ import annotations

import collections
import os
from types import FrameType
from typing import Any, Counter, Tuple

import ignite_ipu

_ROOT = os.path.dirname(ignite_ipu.__file__) + os.sep


def is_counted(file: str) -> bool:
    """Return whether a file of code is this package's, and not the emulator's."""
    return file.startswith(_ROOT) and not file.startswith(f"{_ROOT}emulator{os.sep}")


class CallCounter:
    """A function for `sys.setprofile`.

    Comprehensions are left out, which are no calls in newer versions of Python.

    Attributes:
        calls: How often each function was called, by its module and name.
    """

    def __init__(self) -> None:
        self.calls: Counter[Tuple[str, str]] = collections.Counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if event == "call" and is_counted(file) and not name.startswith("<"):
            self.calls[file[len(_ROOT) : -3].replace(os.sep, "."), name] += 1
