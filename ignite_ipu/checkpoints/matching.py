"""Obstacles that keep a checkpoint from fitting the objects it is loaded into, found before any of them is written."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

import torch
from torch import nn

from ignite_ipu.errors import listed

__all__ = ["differences"]

_SHOWN = 8


def differences(to_load: Mapping[str, Any], content: Any) -> List[str]:
    """Return a sentence for each object that a checkpoint does not fit; none if all fit.

    Args:
        to_load: Objects by their name in the checkpoint.
        content: What the checkpoint holds.
    """
    if not isinstance(content, Mapping):
        return [f"it holds a {type(content).__name__}, not a dictionary of states"]
    found = []
    for name, target in to_load.items():
        state = content.get(name)
        if name not in content:
            found.append(f"it has no {name!r}; it has {sorted(map(str, content))}")
        elif not isinstance(state, Mapping):
            found.append(f"its {name!r} is a {type(state).__name__}, not a dictionary")
        elif isinstance(target, nn.Module):
            found += [f"its {name!r}: {text}" for text in _of_module(target, state)]
        elif isinstance(target, torch.optim.Optimizer):
            found += [f"its {name!r}: {text}" for text in _of_optimizer(target, state)]
    return found


def _of_module(module: nn.Module, state: Mapping[str, Any]) -> List[str]:
    own = module.state_dict()
    texts = []
    missing, strange = [key for key in own if key not in state], [key for key in state if key not in own]
    if missing:
        texts.append(f"lacks {listed(missing, _SHOWN)}")
    if strange:
        texts.append(f"has {listed(strange, _SHOWN)}, which the model has not")
    shapes = [
        f"{key} {_shape(state[key])} instead of {_shape(value)}"
        for key, value in own.items()
        if key in state and isinstance(value, torch.Tensor) and _shape(state[key]) != _shape(value)
    ]
    if shapes:
        texts.append(f"other shapes: {listed(shapes, _SHOWN)}")
    return texts


def _of_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> List[str]:
    groups, entries = state.get("param_groups"), state.get("state")
    if not isinstance(groups, list) or not isinstance(entries, Mapping):
        return ["is not the state of an optimizer"]
    sizes = [_size(group) for group in groups]
    own = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != own:
        return [f"groups of {sizes} parameters instead of {own}"]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in groups for number in group["params"]]
    shape_of: Dict[Any, Any] = {number: _shape(parameter) for number, parameter in zip(numbers, parameters)}
    shapes = [
        f"{slot} of parameter {number} {_shape(value)} instead of {shape_of[number]}"
        for number, slots in entries.items()
        if number in shape_of and isinstance(slots, Mapping)
        for slot, value in slots.items()
        if isinstance(value, torch.Tensor) and value.dim() and _shape(value) != shape_of[number]
    ]
    strange = [str(number) for number, slots in entries.items() if number not in shape_of or not _is_slots(slots)]
    texts = [f"other shapes: {listed(shapes, _SHOWN)}"] if shapes else []
    return texts + ([f"state of parameters that there are not: {listed(strange, _SHOWN)}"] if strange else [])


def _is_slots(slots: Any) -> bool:
    return isinstance(slots, Mapping)


def _size(group: Any) -> int:
    numbers = group.get("params") if isinstance(group, Mapping) else None
    return len(numbers) if isinstance(numbers, list) and all(type(number) is int for number in numbers) else -1


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
