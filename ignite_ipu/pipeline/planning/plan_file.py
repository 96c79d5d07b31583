"""Plans as files: planned once, shared, and held to the model that they were made for.

A file holds the measurements and the decisions. The times and the memory of every stage are computed again when it is
read, so no file can claim that a plan fits.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, List, NoReturn, Optional, Tuple, Type, Union, get_type_hints

from torch import nn

from ignite_ipu.checkpoints.atomic_files import whole_file
from ignite_ipu.errors import PlanError, listed
from ignite_ipu.pipeline.costs.machine import Machine
from ignite_ipu.pipeline.costs.stages import OptimizerState, Strategy
from ignite_ipu.pipeline.planning.plan import Plan
from ignite_ipu.pipeline.planning.planner import plan as make_plan
from ignite_ipu.pipeline.profiling.profile import Profile

_FORMAT, _VERSION = "ignite-ipu plan", 1
_LARGEST_FILE = 16 << 20
_MOST_LAYERS = 1024
_LARGEST = 1 << 62
_SHOWN = 8


@dataclass(frozen=True)
class _Stage:
    ipu: int
    layers: int


@dataclass(frozen=True)
class _Content:
    """A file's content: it has these entries, and each is of its type."""

    format: str
    version: int
    profile: Profile
    machine: Machine
    optimizer: OptimizerState
    strategy: Strategy
    stages: Tuple[_Stage, ...]
    replicas: int
    accumulation: int
    device_iterations: int
    reasons: Tuple[str, ...]


_MOST = {"replicas": 1 << 31, "accumulation": 1 << 31, "device_iterations": 1 << 31, "samples": 1 << 30}
"""Largest values of what is no size in bytes; these begin at 1."""


def save_plan(plan: Plan, path: Union[str, os.PathLike[str]]) -> None:
    """Write a plan to a JSON file, whole or not at all.

    Raises:
        PlanError: The plan does not fit, or has more layers than a file may have.
        OSError: The file cannot be written.
    """
    plan.check()
    if len(plan.profile.layers) > _MOST_LAYERS:
        raise PlanError(
            f"The plan has {len(plan.profile.layers)} layers; a file may have {_MOST_LAYERS}. Measure with a coarser "
            'granularity, such as "blocks".'
        )
    own = {field.name: getattr(plan, field.name) for field in fields(_Content) if hasattr(plan, field.name)}
    own["stages"] = tuple(_Stage(stage.ipu, len(stage.layers)) for stage in plan.stages)
    text = json.dumps(asdict(_Content(format=_FORMAT, version=_VERSION, **own)), indent=1, allow_nan=False) + "\n"
    with whole_file(Path(path)) as file:
        file.write(text.encode())


def load_plan(path: Union[str, os.PathLike[str]], model: Optional[nn.Module] = None) -> Plan:
    """Read a plan that `save_plan` wrote. Nothing in the file is run, and its size and depth are bounded.

    Args:
        model: The model that it is to be used for; its layers and parameters are compared with the plan's.

    Raises:
        PlanError: The file is no plan, is of another version, contradicts itself, or is for another model; the message
            names the differences. The plan does not fit the machine that it is for.
        OSError: It cannot be read.
    """
    name = os.fspath(path)
    try:
        found = _planned(name)
    except (PlanError, ArithmeticError, ValueError) as error:
        raise PlanError(f"{name} is no plan: {error}") from None
    found.check()
    differences = [] if model is None else _differences(found.profile, model)
    if differences:
        rest = len(differences) - _SHOWN
        raise PlanError(
            f"{name} is a plan for another model ({found.profile.model}; this is a {type(model).__name__}): "
            f"{'; '.join(differences[:_SHOWN])}{f'; and {rest} more' if rest > 0 else ''}. Plan this model, "
            "for example with `ignite-ipu plan --save`."
        )
    return found


def _planned(name: str) -> Plan:
    with open(name, "rb") as file:
        data = file.read(_LARGEST_FILE + 1)
    if len(data) > _LARGEST_FILE:
        _refuse(f"it has more bytes than a plan, which has at most {_LARGEST_FILE}")
    try:
        # Python's own limit refuses deeper nesting.
        read = json.loads(data.decode("utf-8"), parse_constant=lambda text: _refuse(f"{text} is no number"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, PlanError):
            raise
        _refuse(f"it is no JSON ({str(error)[:200]})")
    if not isinstance(read, dict) or read.get("format") != _FORMAT:
        _refuse(f"its format is not {_FORMAT!r}")
    if read.get("version") != _VERSION:
        _refuse(
            f"it is of version {str(read.get('version'))[:20]}, and this library reads version {_VERSION}; "
            "plan again, or use the library that wrote it"
        )
    content = _value(_Content, read, "content")
    ipus = [stage.ipu for stage in content.stages]
    if len(content.profile.layers) > _MOST_LAYERS:
        _refuse(f"it has {len(content.profile.layers)} layers, and a plan has at most {_MOST_LAYERS}")
    if not ipus or set(ipus) != set(range(len(set(ipus)))):
        _refuse(f"its stages are on the IPUs {sorted(set(ipus))}, which leave gaps")
    found = make_plan(
        content.profile,
        1 + max(ipus),
        replicas=content.replicas,
        strategy=content.strategy,
        optimizer=content.optimizer,
        machine=content.machine,
        accumulation=content.accumulation,
        device_iterations=content.device_iterations,
        sizes=[stage.layers for stage in content.stages],
        stage_ipus=ipus,
    )
    return replace(found, reasons=content.reasons)


def _value(kind: Any, value: Any, where: str) -> Any:
    """Return a value of the wanted type, made of plain data."""
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        if not isinstance(value, dict) or set(value) != set(hints):
            given = listed(sorted(str(name)[:40] for name in value), 20) if isinstance(value, dict) else "none"
            _refuse(f"its {where} has the entries {given} instead of {', '.join(hints)}")
        return kind(**{name: _value(hint, value[name], f"{where}.{name}") for name, hint in hints.items()})
    if kind in (bool, str):
        if type(value) is not kind:
            _refuse(f"its {where} is no {kind.__name__}")
        return value
    if kind is int:
        last = where.rpartition(".")[2]
        least, most = int(last in _MOST), _MOST.get(last, _LARGEST)
        if type(value) is not int or not least <= value <= most:
            _refuse(f"its {where} is no whole number from {least} to {most}")
        return value
    if kind is float:
        if type(value) not in (int, float) or not 0 <= value <= _LARGEST or not math.isfinite(value):
            _refuse(f"its {where} is no number from 0 on")
        return float(value)
    # The remaining types are tuples of one kind of item.
    if not isinstance(value, list):
        _refuse(f"its {where} is no list")
    return tuple(_value(kind.__args__[0], entry, where) for entry in value)


@lru_cache(maxsize=None)
def _hints(kind: Type[Any]) -> Dict[str, Any]:
    found = get_type_hints(kind)
    return {field.name: found[field.name] for field in fields(kind)}


def _differences(profile: Profile, model: nn.Module) -> List[str]:
    """Return a sentence for each layer and parameter in which a model is not the one that was measured."""
    modules = dict(model.named_modules())
    own = {name: tensor.numel() * tensor.element_size() for name, tensor in model.named_parameters()}
    planned = {part.name: part.bytes for layer in profile.layers for part in layer.parameters}
    found = [f"there is no layer {layer.name!r}" for layer in profile.layers if layer.module not in modules]
    for name, size in planned.items():
        if name not in own:
            found.append(f"there is no parameter {name!r}")
        elif own[name] != size:
            found.append(f"parameter {name!r} has {own[name]} bytes instead of {size}")
    return found + [f"parameter {name!r} is not in the plan" for name in own if name not in {*planned, *profile.unused}]


def _refuse(why: str) -> NoReturn:
    raise PlanError(f"{why}.")
