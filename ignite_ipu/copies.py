"""`copy.deepcopy` of a model that PopTorch has wrapped gives an ordinary model with the newest weights.

PopTorch changes the classes of a model's tensors, and a deep copy of such a tensor either stays tied to the executor or
fails. Handlers copy models: Ignite's `EMAHandler`, a "best model so far", torch's `AveragedModel`.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Sequence

import torch
from torch import nn

from ignite_ipu.untouched import gradient_of, plain, requires_grad

__all__ = ["classes_of", "copy_as_ordinary_tensors", "ordinary_copy", "put_classes", "unwrap_tensors"]


def copy_as_ordinary_tensors(model: nn.Module) -> None:
    """Make deep copies of a wrapped model's parameters and buffers ordinary parameters and tensors.

    Args:
        model: The module that was handed to `poptorch.trainingModel`. Its tensors' classes are PopTorch's own, made
            for this one executor, so nobody else's tensors are touched.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        wrapped = type(tensor)
        if wrapped not in (torch.Tensor, nn.Parameter):
            wrapped.__deepcopy__ = ordinary_copy  # type: ignore[method-assign]


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


def ordinary_copy(tensor: torch.Tensor, memo: Dict[int, Any]) -> torch.Tensor:
    """Return a deep copy of a parameter or buffer that is of PyTorch's own class."""
    # Looking up __deepcopy__ has fetched newer weights from the device, as every access to a wrapped tensor does.
    with torch._C.DisableTorchFunctionSubclass():
        ordinary = plain(tensor).clone()
        gradient, needs_gradient = gradient_of(tensor), requires_grad(tensor)
    if isinstance(tensor, nn.Parameter):
        ordinary = nn.Parameter(ordinary, needs_gradient)
        ordinary.grad = copy.deepcopy(gradient, memo)
    memo[id(tensor)] = ordinary
    return ordinary
