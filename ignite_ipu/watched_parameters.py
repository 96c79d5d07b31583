"""Parameters of a model that is evaluated and not trained, of a class that can tell when somebody touches them.

PopTorch gives the tensors of a model in training classes of its own, by which `Touches` notices writes that PyTorch
does not count. A model that is evaluated alone keeps ordinary ones, and `parameter.data.mul_(...)` is how moving
averages of weights are usually written: those of teachers, momentum encoders and target networks.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable

import torch
from torch import nn

from ignite_ipu.copies import ordinary_copy

__all__ = ["is_watched", "unwatch_parameters", "watch_parameters"]


class _Watched(nn.Parameter):
    """What all such classes have in common: it goes no further than the object itself."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return ordinary_copy(self, {}).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: Dict[int, Any]) -> Any:
        return ordinary_copy(self, memo)


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
