"""Optimizers of captured loops, and the parameters that they hold."""

from __future__ import annotations

import weakref
from typing import FrozenSet, List

import torch
from torch import nn

from ignite_ipu.program.tensors.raw import requires_grad

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


def held_tensors(optimizer: torch.optim.Optimizer) -> List[torch.Tensor]:
    """Return the parameters that an optimizer holds."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def held_by(optimizer: torch.optim.Optimizer) -> FrozenSet[int]:
    """Return the ids of the parameters that an optimizer holds."""
    return frozenset(map(id, held_tensors(optimizer)))


def held_parameters() -> FrozenSet[int]:
    """Return the ids of the parameters that some optimizer holds."""
    return frozenset().union(*map(held_by, list(OPTIMIZERS)))


def is_held(model: nn.Module, trained: bool = False) -> bool:
    """Tell whether some optimizer holds a parameter of a model; if asked, one that requires gradients."""
    held = held_parameters()
    with torch._C.DisableTorchFunctionSubclass():
        return any(id(each) in held and (requires_grad(each) or not trained) for each in model.parameters())
