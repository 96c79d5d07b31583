"""Whole state dictionaries of optimizers, from torch's form to PopTorch's and back, for files and your own loops."""

from __future__ import annotations

from typing import Any, Collection, Dict, List, Mapping

import torch
from torch import nn

from ignite_ipu import backend
from ignite_ipu.optimizers.errors import OptimizerError
from ignite_ipu.optimizers.kinds import Kind, kind_of_device, kind_of_torch
from ignite_ipu.optimizers.state import state_from_torch, state_to_torch

__all__ = ["convert_optimizer_state"]

_LOSS_SCALING = "lossScaling_FLOAT"


def convert_optimizer_state(
    state_dict: Mapping[str, Any], optimizer: torch.optim.Optimizer, module: nn.Module, *, steps: int = 0
) -> Dict[str, Any]:
    """Return an optimizer's state dictionary in the other form: PopTorch's for torch's, and torch's for PopTorch's.

    This library's trainers convert by themselves. This is for optimizers of `poptorch.optim` in loops of your own::

        optimizer.load_state_dict(convert_optimizer_state(torch.load("native.pt"), optimizer, wrapped_module))

    Args:
        state_dict: What `state_dict()` of a torch optimizer, or of one of `poptorch.optim`, has returned.
        optimizer: An optimizer of the same kind over the module's parameters, in the same groups and order. It is only
            read, and may be of either library.
        module: The module that was or will be handed to `poptorch.trainingModel`. State is named for its parameters.
        steps: Weight updates made so far, where PopTorch does not count them: for RMSprop's torch form.

    Raises:
        OptimizerError: The state belongs to other groups, to another kind of optimizer, or to another module.
    """
    kind = _kind(optimizer)
    names_of = {id(parameter): name for name, parameter in module.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(id(parameter) not in names_of for parameter in parameters):
        raise OptimizerError(
            "The optimizer holds parameters that are not the module's. Pass the module that PopTorch wraps, with the "
            "loss in it, and the optimizer over its parameters."
        )
    names = [names_of[id(parameter)] for parameter in parameters]
    groups = [dict(group) for group in state_dict["param_groups"]]
    sizes = [len(group["params"]) for group in groups]
    expected = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != expected:
        raise OptimizerError(f"The state has groups of {sizes} parameters, but the optimizer has {expected}.")
    on_device = isinstance(optimizer, backend.poptorch().optim.Optimizer)
    record = state_dict if "ipu_state" in state_dict else optimizer.get_state_dict() if on_device else {}  # type: ignore[attr-defined]
    _refuse_other_names(record.get("ipu_state") or {}, names_of.values(), type(module).__qualname__)
    if "ipu_state" in state_dict:
        return _to_torch(state_dict, kind, names, groups, steps)
    shapes = [tuple(parameter.shape) for parameter in parameters]
    loss_scaling = float(getattr(optimizer, "loss_scaling", 1.0))
    numbers = {old: new for new, old in enumerate(number for group in groups for number in group["params"])}
    state = {numbers[old]: entries for old, entries in state_dict["state"].items()}
    converted = state_from_torch(state, names, shapes, _numbered(groups), kind, loss_scaling=loss_scaling)
    return {"ipu_state": converted, "ipu_param": {}, "state": {}, "param_groups": groups}


def _refuse_other_names(device_state: Mapping[str, Any], names: Collection[str], module: str) -> None:
    """Refuse a device's state that is named for the parameters of a module around or inside the one that is given."""
    others = [entry for entry in device_state if "___" in entry and entry.split("___", 1)[1] not in names]
    if others:
        raise OptimizerError(
            f"The state on the device has {others[0]}, but the {module} that was passed has parameters named "
            f"{', '.join(list(names)[:2])}, ..., so its state would be ignored. Pass the module that was handed to "
            "poptorch.trainingModel, with the loss in it."
        )


def _to_torch(
    state_dict: Mapping[str, Any], kind: Kind, names: List[str], groups: List[Dict[str, Any]], steps: int
) -> Dict[str, Any]:
    device_state = state_dict["ipu_state"]
    numbered = _numbered(groups)
    if device_state is None:
        return {"state": {}, "param_groups": numbered}  # the device was never used
    scaling = (state_dict.get("ipu_param") or {}).get(_LOSS_SCALING, state_dict.get("loss_scaling", 1.0))
    state = state_to_torch(device_state, names, numbered, kind, steps=steps, loss_scaling=float(scaling))
    return {"state": state, "param_groups": numbered}


def _numbered(groups: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    numbered = []
    start = 0
    for group in groups:
        count = len(group["params"])
        numbered.append({**group, "params": list(range(start, start + count))})
        start += count
    return numbered


def _kind(optimizer: torch.optim.Optimizer) -> Kind:
    if isinstance(optimizer, backend.poptorch().optim.Optimizer):
        kind = kind_of_device(optimizer)
        if kind is None:
            raise OptimizerError(f"{type(optimizer).__qualname__} derives from no optimizer of poptorch.optim.")
        return kind
    return kind_of_torch(optimizer)
