"""The variable hyper-parameters under the names that the device's program has for them."""

from __future__ import annotations

from typing import Dict, Iterable, Iterator, Mapping, Optional, Tuple

import torch

from ignite_ipu.emulator.optim.description import OptimizerDescription
from ignite_ipu.emulator.optim.hyper_parameters import HyperParameters, UpdateRule

_PLAIN = {
    "lr": "learningRate",
    "weight_decay": "weightDecay",
    "beta1": "beta1",
    "beta2": "beta2",
    "eps": "eps",
    "alpha": "alpha",
    "momentum": "momentum",
    "max_weight_norm": "maxWeightNorm",
}
_Entry = Tuple[str, float, Iterable[str]]


def device_values(description: OptimizerDescription, group_of: Mapping[str, Optional[int]]) -> Dict[str, torch.Tensor]:
    """Return the values that can change without compiling, as scalars of float32.

    Args:
        description: Which values are variable.
        group_of: The parameter group of each weight; None for one that takes the defaults.

    Returns:
        For instance `{"learningRate___specific___fc.weight": ..., "lossScaling_FLOAT": ...}`. SGD's values are combined
        into the factors of its update, such as `scaledLearningRate0___specific___fc.weight`.
    """
    found: Dict[str, torch.Tensor] = {}
    loss_scaling = description.loss_scaling.value
    for name, group in group_of.items():
        values = description.values(group)
        suffix = "default___FLOAT" if group is None else f"specific___{name}"
        for entry, value, depends_on in _entries(description, values, loss_scaling):
            if any(not _constant(description, values, part) for part in depends_on):
                found[f"{entry}___{suffix}"] = torch.tensor(value, dtype=torch.float32)
    if not description.loss_scaling.constant:
        found["lossScaling_FLOAT"] = torch.tensor(loss_scaling, dtype=torch.float32)
    return found


def _constant(description: OptimizerDescription, values: HyperParameters, name: str) -> bool:
    return description.loss_scaling.constant if name == "loss_scaling" else values.get(name).constant


def _entries(description: OptimizerDescription, values: HyperParameters, loss_scaling: float) -> Iterator[_Entry]:
    if description.kind not in (UpdateRule.SGD1, UpdateRule.SGD2):
        for name in values:
            yield _PLAIN[name], values[name], (name,)
        return
    lr, decay, damped = values["lr"], values["weight_decay"], 1 - values["dampening"]
    if values.absent("momentum"):
        yield "scaledLearningRate0", lr * damped / loss_scaling, ("lr", "dampening", "loss_scaling")
        yield "weightDecayScaleFactor0", 1 - lr * damped * decay, ("lr", "dampening", "weight_decay")
        return
    combined = description.kind is UpdateRule.SGD1
    number, scaling, which = (
        ("1", values["velocity_scaling"], "velocity_scaling") if combined else ("2", loss_scaling, "loss_scaling")
    )
    yield f"scaledLearningRate{number}", lr / scaling, ("lr", which)
    yield f"scaledWeightDecay{number}", damped * decay * scaling, ("dampening", "weight_decay", which)
    yield f"dampeningScaleFactor{number}", damped * scaling / loss_scaling, ("dampening", which, "loss_scaling")
    yield f"scaledMomentum{number}", values["momentum"], ("momentum",)
