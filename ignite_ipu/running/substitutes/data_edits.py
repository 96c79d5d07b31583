"""Weights that a script edits through `parameter.data`, which PyTorch does not count as an edit of the parameter."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any, Optional

import torch

from ignite_ipu.deferred.model.model import owner_of
from ignite_ipu.program.user_code import OURS
from ignite_ipu.running.patches import Substitutes

__all__ = ["substitute_data"]

# They edit weights in ways that are known.
_OURS = (os.path.dirname(os.path.abspath(torch.__file__)) + os.sep, OURS)

# Of the classes of wrapped parameters, PopTorch's and this library's.
_ACCESSORS = ("__getattribute__", "__torch_function__", "getattribute", "torch_function")


def substitute_data(substitutes: Substitutes) -> None:
    """Let captured models notice what the script, or a library that it calls, writes into `parameter.data`.

    A moving average of weights (mean teachers, momentum encoders, target networks) is often written so.
    """
    original: Any = torch.Tensor.data

    def read(tensor: Any) -> Any:
        value = original.__get__(tensor)
        owner = owner_of(tensor)
        if owner is not None and not _reader(sys._getframe(1)).startswith(_OURS):
            owner.session.weights.watch(value)
        return value

    def write(tensor: Any, value: Any) -> None:
        original.__set__(tensor, value)
        owner = owner_of(tensor)
        if owner is not None:
            owner.session.weights.host_changed()

    substitutes.set(torch.Tensor, "data", property(read, write))


def _reader(frame: Optional[FrameType]) -> str:
    """Return the file of whoever reads an attribute, which PopTorch's class of wrapped parameters passes on."""
    while frame is not None and frame.f_code.co_name in _ACCESSORS:
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename
