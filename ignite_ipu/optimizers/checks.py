"""Checks that an optimizer and a model agree on what is trained."""

from __future__ import annotations

from typing import Collection, List, Optional

import torch
from torch import nn

from ignite_ipu.errors import OptimizerError, listed

_MOST_NAMES = 8


def check_parameters(optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
    """Refuse an optimizer that does not hold exactly the trainable parameters of a module.

    Frozen parameters may be in it or not. A trainable one must: the device would update it all the same, with the
    optimizer's default values.
    """
    named = dict(module.named_parameters())
    known = {id(parameter) for parameter in named.values()}
    held = set()
    foreign: List[str] = []
    for index, group in enumerate(optimizer.param_groups):
        names = group.get("param_names", [None] * len(group["params"]))
        for position, (parameter, name) in enumerate(zip(group["params"], names)):
            held.add(id(parameter))
            if id(parameter) not in known:
                place = f"group {index}, parameter {position}"
                foreign.append(f"{name or place} of shape {tuple(parameter.shape)}")
    if foreign:
        raise OptimizerError(
            f"The optimizer holds parameters that are not the model's: {listed(foreign, _MOST_NAMES)}. Make the "
            "optimizer from model.parameters() of the model that is trained, after anything that copies or replaces "
            "its parameters."
        )
    missing = [name for name, parameter in named.items() if parameter.requires_grad and id(parameter) not in held]
    if missing:
        raise OptimizerError(
            f"Trainable parameters are in no group of the optimizer: {listed(missing, _MOST_NAMES)}. The device would "
            "train them with the optimizer's default values. Add them to the optimizer, or freeze them with "
            "parameter.requires_grad_(False)."
        )


def clipping_problem(optimizer: torch.optim.Optimizer, variable: Collection[str] = ()) -> Optional[str]:
    """Return why an IPU would not clip the gradients of an optimizer's parameters; None when it would.

    SGD clips what its weight update consumes: with momentum the velocity, which also has the weight decay in it, and
    without momentum the gradient, to which the decay comes afterwards.
    """
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        return None
    kind = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.SGD):
        return f"{kind} cannot clip gradients on an IPU. Use Adam, AdamW, or SGD without momentum."
    momenta = [group["momentum"] for group in optimizer.param_groups]
    if not any(momenta) and "momentum" not in variable:
        return None
    return (
        f"with momentum={max(momenta)!r} an IPU's {kind} clips the velocity, not the gradients as "
        f"clip_grad_norm_ does. Use Adam, AdamW, or {kind} whose momentum is 0 and constant; or, if that is what you "
        f"want, poptorch.optim.{kind}(..., max_grad_norm=...)."
    )
