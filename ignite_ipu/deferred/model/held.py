"""Optimizers of captured loops, and the parameters that they hold."""

from __future__ import annotations

import weakref
from typing import FrozenSet, List, Set

import torch
from torch import nn

from ignite_ipu.program.tensors.raw import requires_grad

__all__ = [
    *("MODEL", "OPTIMIZERS", "WATCH", "held_by", "held_lists", "held_parameters"),
    *("is_held", "is_trained", "release_optimizer"),
]

OPTIMIZERS: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
MODEL = "_ignite_ipu_model"
"""The attribute of an optimizer that holds, weakly, its updates of a captured model."""
WATCH = "_ignite_ipu_watch"
"""The attribute of an optimizer that holds what has functions of its parameters recorded."""


def release_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Give an optimizer its own methods back."""
    watch = optimizer.__dict__.pop(WATCH, None)
    if watch is not None:
        watch.end()
    for name in ("step", "zero_grad", "add_param_group", MODEL):
        optimizer.__dict__.pop(name, None)
    OPTIMIZERS.discard(optimizer)


def held_parameters() -> Set[int]:
    """Return the ids of the parameters that some optimizer holds."""
    return {each for optimizer in list(OPTIMIZERS) for each in held_by(optimizer)}


def held_lists() -> List[List[torch.Tensor]]:
    """Return the parameters that each optimizer holds."""
    return [[each for group in optimizer.param_groups for each in group["params"]] for optimizer in list(OPTIMIZERS)]


def held_by(optimizer: torch.optim.Optimizer) -> FrozenSet[int]:
    """Return the ids of the parameters that an optimizer holds."""
    return frozenset(id(each) for group in optimizer.param_groups for each in group["params"])


def is_held(model: nn.Module) -> bool:
    """Tell whether some optimizer holds a parameter of a model."""
    held = held_parameters()
    return any(id(parameter) in held for parameter in model.parameters())


def is_trained(model: nn.Module) -> bool:
    """Tell whether some optimizer holds a parameter of a model that requires gradients."""
    held = held_parameters()
    with torch._C.DisableTorchFunctionSubclass():
        return any(id(parameter) in held and requires_grad(parameter) for parameter in model.parameters())
