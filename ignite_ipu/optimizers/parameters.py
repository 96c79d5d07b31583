"""Whether an optimizer and a model agree on what is trained."""

from __future__ import annotations

from typing import List

import torch
from torch import nn

from ignite_ipu.listing import listed
from ignite_ipu.optimizers.errors import OptimizerError

__all__ = ["check_parameters"]

_MOST_NAMES = 8


def check_parameters(optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
    """Refuse an optimizer that does not hold exactly the trainable parameters of a module.

    Frozen parameters may be in it or not. A trainable one must: the device would update it all the same, with the
    optimizer's default values.

    Raises:
        OptimizerError: It misses trainable parameters, or holds some that are not the module's; the message names them.
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
