"""Modules of a model that count as its layers."""

from __future__ import annotations

import re
from typing import Dict, List, Sequence, Union

from torch import nn

from ignite_ipu.errors import PlanError, did_you_mean

Granularity = Union[str, int, Sequence[str]]
"""`"blocks"`, `"leaves"`, a depth of 1 or more, or the qualified names themselves, ranges such as `layers.0-3`, too."""


def select_layers(model: nn.Module, granularity: Granularity = "blocks") -> List[str]:
    """Return the qualified names of the modules that are the model's layers, in the order of registration.

    Args:
        granularity: `"blocks"` opens containers, whatever holds a `ModuleList`, and single wrappers, and keeps their
            items whole, which gives transformer layers and residual blocks. `"leaves"` takes the modules without
            children. A number takes the modules at that depth, and leaves above it. A sequence of names is taken as it
            is; `layers.0-3` in it are `layers.0` to `layers.3`.

    Raises:
        PlanError: A name that the model does not have, a repeated name, or an unknown granularity.
    """
    if isinstance(granularity, str):
        if granularity == "blocks":
            return _blocks(model)
        if granularity == "leaves":
            return [name for name, module in model.named_modules() if not _children(module)]
        raise PlanError(f"granularity is {granularity!r}; it must be 'blocks', 'leaves', a depth or a list of names.")
    if isinstance(granularity, int):
        if granularity < 1:
            raise PlanError(f"granularity is {granularity}; a depth starts at 1, the model's own children.")
        return _at_depth(model, granularity)
    return _checked_names(model, granularity)


def layer_names(model: nn.Module, granularity: Granularity = "blocks") -> List[str]:
    """Return the names by which plans and placements know the layers: a model without children has its class's."""
    return [name or type(model).__name__ for name in select_layers(model, granularity)]


def names_of(model: nn.Module, name: str) -> List[str]:
    """Return the layers that a name stands for: itself, or those of a range such as `layers.0-3`."""
    known = dict(model.named_modules())
    numbers = None if name in known else re.fullmatch(r"(.*?)(\d+)-(\d+)", name)
    if numbers is None:
        return [name]
    first, last = int(numbers[2]), int(numbers[3])
    if f"{numbers[1]}{last}" not in known or first > last:
        raise PlanError(f"{type(model).__name__} has no layers {name!r}.{did_you_mean(name, filter(None, known))}")
    return [f"{numbers[1]}{number}" for number in range(first, last + 1)]


def _children(module: nn.Module) -> Dict[str, nn.Module]:
    return dict(module.named_children())


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _is_container(module: nn.Module) -> bool:
    if isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict)):
        return True
    return any(isinstance(m, nn.ModuleList) and len(m) > 1 for m in module.modules())


def _blocks(model: nn.Module) -> List[str]:
    names = _expanded(model, "")
    while True:
        # A network wrapped alone, or beside a loss without weights, is opened too: one layer is no chain.
        heavy = [name for name in names if any(True for _ in model.get_submodule(name).parameters())]
        if len(heavy) != 1 or not _children(model.get_submodule(heavy[0])):
            return names
        place = names.index(heavy[0])
        names[place : place + 1] = _expanded(model.get_submodule(heavy[0]), heavy[0])


def _expanded(module: nn.Module, prefix: str) -> List[str]:
    children = _children(module)
    if not children:
        return [prefix]
    names: List[str] = []
    for name, child in children.items():
        inner = _join(prefix, name)
        names += _expanded(child, inner) if _is_container(child) and _children(child) else [inner]
    return names


def _at_depth(module: nn.Module, depth: int, prefix: str = "") -> List[str]:
    children = _children(module)
    if not children or depth == 0:
        return [prefix]
    return [leaf for name, child in children.items() for leaf in _at_depth(child, depth - 1, _join(prefix, name))]


def _checked_names(model: nn.Module, names: Sequence[str]) -> List[str]:
    known = dict(model.named_modules())
    seen: List[str] = []
    for name in (name for given in names for name in names_of(model, given)):
        if name not in known:
            near = ", ".join(_at_depth(model, 2)[:20])
            inside = f"Names near the top: {near}." if near else "It has no modules inside."
            raise PlanError(f"{type(model).__name__} has no module named {name!r}. {inside}")
        if name in seen:
            raise PlanError(f"Layer {name!r} is listed twice; a layer runs on one IPU, so name it once.")
        seen.append(name)
    return seen
