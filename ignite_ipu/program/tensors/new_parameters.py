"""`nn.Parameter(tensor)` of a tensor of this library or of PopTorch, which is an ordinary parameter with its value.

Of a tensor of another class than its own, PyTorch takes `detach()` and `requires_grad_()`, which have to return the
same class, and marks the result. So the result has that class until it is marked.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Optional

import torch
from torch import nn

from ignite_ipu.program.user_code import OURS
from ignite_ipu.torch_names.tensors import call_when_marked

_MAKING = nn.Parameter.__new__.__code__


def makes_parameter() -> bool:
    """Return whether `nn.Parameter(...)` called the function of a tensor that is running."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return frame is not None and frame.f_code is _MAKING


def as_new_parameter(values: torch.Tensor, tensor_class: Any) -> torch.Tensor:
    """Return values in the class that PyTorch asks for, until it marks them as a parameter."""
    values.__class__ = tensor_class
    return values


def convert_when_marked(tensor_class: Any) -> None:
    """Let tensors of a class become ordinary parameters when PyTorch marks them as such."""
    call_when_marked(tensor_class, _become_parameter)


def _become_parameter(tensor: torch.Tensor) -> None:
    tensor.__class__ = nn.Parameter
