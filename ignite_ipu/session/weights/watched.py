"""Parameters of a model that is evaluated and not trained, of a class of their own for `Touches`.

PopTorch gives the tensors of a model in training classes of its own, by which `Touches` notices writes that PyTorch
does not count. A model that is evaluated alone keeps ordinary ones, and `parameter.data.mul_(...)` is how moving
averages of weights are usually written: those of teachers, momentum encoders and target networks.
"""

from __future__ import annotations

from typing import Iterable

import torch
from torch import nn

__all__ = ["is_watched", "unwatch_parameters", "watch_parameters"]


class _Watched(nn.Parameter):
    """What all such classes have in common."""


def is_watched(tensor_class: type) -> bool:
    """Tell whether this is a class that `watch_parameters` has made."""
    return issubclass(tensor_class, _Watched)


def watch_parameters(tensors: Iterable[torch.Tensor]) -> None:
    """Give parameters a class of their own; those of other classes than PyTorch's keep theirs.

    Buffers stay ordinary tensors: PopTorch compiles no training program for a model with others.
    """
    ordinary = [tensor for tensor in tensors if type(tensor) is nn.Parameter]
    if not ordinary:
        return
    members = {"__module__": nn.Parameter.__module__, "__qualname__": nn.Parameter.__qualname__}
    watched = type("Parameter", (_Watched,), members)
    for tensor in ordinary:
        tensor.__class__ = watched


def unwatch_parameters(tensors: Iterable[torch.Tensor]) -> None:
    """Give parameters PyTorch's class back."""
    for tensor in tensors:
        if is_watched(type(tensor)):
            object.__setattr__(tensor, "__class__", nn.Parameter)
