"""Reads what tensors of a wrapped model are, without touching them: a touch downloads the newest weights first.

The getters and setters are PyTorch's own, for use under `torch._C.DisableTorchFunctionSubclass()`, which is entered
once for many tensors. Outside of it they touch as everything else does.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

__all__ = ["GRADIENT", "dtype_of", "gradient_of", "plain", "requires_grad", "set_gradient", "shape_of", "version_of"]

# The base class, so that these stay the originals when somebody replaces `torch.Tensor.grad`.
_OF_TENSORS: Any = torch.Tensor.__base__
GRADIENT: Any = _OF_TENSORS.grad
"""The attribute, as PyTorch's functions for it know it."""

gradient_of: Callable[[torch.Tensor], Optional[torch.Tensor]] = GRADIENT.__get__
set_gradient: Callable[[torch.Tensor, Optional[torch.Tensor]], None] = GRADIENT.__set__
requires_grad: Callable[[torch.Tensor], bool] = _OF_TENSORS.requires_grad.__get__
shape_of: Callable[[torch.Tensor], torch.Size] = _OF_TENSORS.shape.__get__
dtype_of: Callable[[torch.Tensor], torch.dtype] = _OF_TENSORS.dtype.__get__
version_of: Callable[[torch.Tensor], int] = _OF_TENSORS._version.__get__


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory as an ordinary tensor; this one needs nothing around it."""
    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor.detach(tensor).as_subclass(torch.Tensor)
