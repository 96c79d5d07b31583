"""Optimizers that an IPU lacks become the closest one that it has, where the user asks for that."""

from __future__ import annotations

import functools
import weakref
from typing import Any, Dict, List, Mapping, Tuple

import torch

from ignite_ipu.errors import OptimizerError

__all__ = ["closest_to", "substituted"]

_CLOSEST: Mapping[str, Tuple[Any, str]] = {
    "NAdam": (torch.optim.Adam, "no Nesterov momentum"),
    "RAdam": (torch.optim.Adam, "the first steps are not rectified: let the learning rate rise in them"),
    "Adamax": (torch.optim.Adam, "steps are scaled by mean squares instead of the largest gradient"),
    "SparseAdam": (torch.optim.Adam, "moments of rows that were not used decay, too"),
    "ASGD": (torch.optim.SGD, "the weights are not averaged, and the learning rate does not fall by itself"),
}
_AMSGRAD = "mean squares may fall again"


def closest_to(name: str) -> str:
    """Return the name of the optimizer that is closest to one of torch's, empty where none is close."""
    return _CLOSEST[name][0].__name__ if name in _CLOSEST else ""


def substituted(optimizer: torch.optim.Optimizer) -> List[Tuple[str, str, str]]:
    """Make an optimizer the closest one of torch's that an IPU has, for good; its groups keep what both have.

    Returns:
        Name, value and what is lost for everything that changes; empty where nothing does.
    """
    changed: List[Tuple[str, str, str]] = []
    name = type(optimizer).__name__
    if type(optimizer).__module__.startswith("torch.optim") and name in _CLOSEST:
        closest, lost = _CLOSEST[name]
        if any(group.get("decoupled_weight_decay") for group in optimizer.param_groups):
            closest = torch.optim.AdamW
        changed.append(("optimizer", f"{name} -> {closest.__name__}", lost))
    elif any(group.get("amsgrad") for group in optimizer.param_groups):
        closest = None
    else:
        return []
    if any(group.get("amsgrad") for group in optimizer.param_groups):
        changed.append(("amsgrad", "True -> False", _AMSGRAD))
    if optimizer.state:
        raise OptimizerError(
            f"The {name} has trained already, and its state is not that of its substitute. Convert it before it trains."
        )
    if closest is not None:
        known: Dict[str, Any] = closest([torch.zeros(1)]).defaults
        # Schedulers keep numbers of their own in groups.
        lost_names = [key for key in optimizer.defaults if key not in known]
        changed += [(key, str(optimizer.defaults[key]), f"{closest.__name__} has no such number") for key in lost_names]
        for group in (optimizer.defaults, *optimizer.param_groups):
            for key in lost_names:
                group.pop(key, None)
            for key, value in known.items():
                group.setdefault(key, value)
        optimizer.__class__ = closest
        _step_as(optimizer, closest)
    for group in (optimizer.defaults, *optimizer.param_groups):
        if group.get("amsgrad"):
            group["amsgrad"] = False
    return changed


def _step_as(optimizer: torch.optim.Optimizer, closest: Any) -> None:
    """Let a step that a scheduler of torch's has wrapped, to see that it was called, be that of the new class."""
    wrapped = optimizer.__dict__.get("step")
    if not hasattr(wrapped, "__wrapped__"):
        return  # the step of a captured loop asks for the class
    reference = weakref.ref(optimizer)

    @functools.wraps(closest.step)
    def step(*args: Any, **kwargs: Any) -> Any:
        mine: Any = reference()
        mine._opt_called, mine._step_count = True, getattr(mine, "_step_count", 0) + 1
        return closest.step(mine, *args, **kwargs)

    step.__dict__.update({flag: True for flag in ("_with_counter", "_wrapped_by_lr_sched") if hasattr(wrapped, flag)})
    optimizer.__dict__["step"] = step
