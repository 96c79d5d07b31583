"""What calls of PyTorch's API are named, and where in the user's code they stand."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from types import FrameType
from typing import Any, Callable, Optional, Tuple

import torch

ACCESSORS = ("__get__", "__set__", "__delete__")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_NOT_USER_CODE = (os.path.dirname(torch.__file__) + os.sep, _PACKAGE + os.sep, contextlib.__file__, "<frozen")


def name_of(func: Callable[..., Any]) -> str:
    """Return an operator's name, a property's for its accessors and the overloaded one's for an overload."""
    if isinstance(func, functools.partial):
        return name_of(func.func)
    name = getattr(func, "__name__", type(func).__name__)
    if name in ACCESSORS:
        return str(getattr(getattr(func, "__self__", None), "__name__", name))
    packet = getattr(func, "overloadpacket", None)  # torch.ops.aten.add.Tensor
    return str(getattr(packet, "__name__", name))


def identifier(name: str) -> str:
    """Return a Python identifier that reads like `name`."""
    return "".join(character if character.isalnum() else "_" for character in name).strip("_") or "value"


def source(excludes: Tuple[str, ...] = ()) -> Optional[Tuple[str, int]]:
    """Return file and line of the innermost frame that is the user's own code, None when there is none.

    Args:
        excludes: Parts of the names of further files that are not.
    """
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file) and not any(part in file for part in excludes):
            return file, frame.f_lineno
        frame = frame.f_back
    return None


def is_users(file: str) -> bool:
    """Tell whether a file is neither PyTorch's nor this package's."""
    return not file.startswith(_NOT_USER_CODE)
