"""Private names of `torch.optim` and its schedulers."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from ignite_ipu.torch_names.table import attribute, find

__all__ = [
    "GLOBAL_POST_HOOKS",
    "GLOBAL_PRE_HOOKS",
    "STEPPED",
    "STEP_COUNT",
    "marks_of_step",
    "post_hooks_of",
    "pre_hooks_of",
]

Hooks = Dict[int, Callable[..., Any]]
"""Hooks by their number."""


def _scheduled() -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    StepLR(optimizer, 1)
    optimizer.step()
    return optimizer


def _step() -> Any:
    return _scheduled().step


_NOT_CALLED = "Hooks around the step of an optimizer are not called where the device updates the weights."
_PRE = attribute("torch.optim.Optimizer._optimizer_step_pre_hooks", "2.0", _NOT_CALLED, _scheduled)
_POST = attribute("torch.optim.Optimizer._optimizer_step_post_hooks", "2.0", _NOT_CALLED, _scheduled)
_GLOBAL_NOT_CALLED = "Hooks around the steps of all optimizers are not called where the device updates the weights."
GLOBAL_PRE_HOOKS: Hooks = find(
    "torch.optim.optimizer._global_optimizer_pre_hooks", "2.0", _GLOBAL_NOT_CALLED, fallback={}
)
GLOBAL_POST_HOOKS: Hooks = find(
    "torch.optim.optimizer._global_optimizer_post_hooks", "2.0", _GLOBAL_NOT_CALLED, fallback={}
)


def pre_hooks_of(optimizer: torch.optim.Optimizer) -> Hooks:
    """Return the hooks before the step of an optimizer, a dictionary that may be changed."""
    hooks: Hooks = getattr(optimizer, _PRE, {})
    return hooks


def post_hooks_of(optimizer: torch.optim.Optimizer) -> Hooks:
    """Return the hooks after the step of an optimizer, a dictionary that may be changed."""
    hooks: Hooks = getattr(optimizer, _POST, {})
    return hooks


_WARNS = "Schedulers warn that the optimizer was not called before them."
STEPPED = attribute("torch.optim.Optimizer._opt_called", "2.13", _WARNS, _scheduled)
"""Attribute of an optimizer: schedulers note in it that `step()` was called."""
STEP_COUNT = attribute("torch.optim.Optimizer._step_count", "2.0", _WARNS, _scheduled, until="2.13")
"""Attribute of an optimizer in older versions: the number of steps that schedulers count."""
_MARKS = (
    attribute("torch.optim.Optimizer.step._with_counter", "2.0", _WARNS, _step, until="2.13"),
    attribute("torch.optim.Optimizer.step._wrapped_by_lr_sched", "2.13", _WARNS, _step),
)


def marks_of_step() -> List[str]:
    """Return the attributes by which schedulers recognise a `step` that they wrapped, of any version."""
    return list(_MARKS)
