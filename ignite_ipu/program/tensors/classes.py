"""The classes that PopTorch gives the tensors of a model that it wraps, taken off and put on again."""

from __future__ import annotations

from typing import List, Sequence

import torch
from torch import nn

__all__ = ["classes_of", "put_classes", "unwrap_tensors"]


def unwrap_tensors(model: nn.Module) -> None:
    """Give the parameters and buffers of a wrapped model back the classes they had before.

    For use after a compilation that failed: PopTorch undoes a wrapping only when a compiled program is destroyed, and
    refuses to wrap a wrapped model again.

    Args:
        model: The module that was handed to `poptorch.trainingModel`.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        wrapped = type(tensor)
        if wrapped not in (torch.Tensor, nn.Parameter):
            object.__setattr__(tensor, "__class__", wrapped.__mro__[1])


def classes_of(model: nn.Module) -> List[type]:
    """Return the classes of a wrapped model's parameters and buffers, for `put_classes`."""
    return [type(tensor) for tensor in (*model.parameters(), *model.buffers())]


def put_classes(model: nn.Module, classes: Sequence[type]) -> None:
    """Tie the parameters and buffers of a model to the executor again whose classes these are."""
    for tensor, tensor_class in zip((*model.parameters(), *model.buffers()), classes):
        object.__setattr__(tensor, "__class__", tensor_class)
