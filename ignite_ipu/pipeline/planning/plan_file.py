"""Plans as files: planned once, shared, and held to the model that they were made for.

A file holds what was measured and what was decided. What follows from these, the times and the memory of every stage,
is worked out again when it is read, so no file can claim that something fits.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NoReturn, Optional, Tuple, Type, Union, get_type_hints

from torch import nn

from ignite_ipu.checkpoints.atomic_files import whole_file
from ignite_ipu.errors import PlanError, listed
from ignite_ipu.pipeline.costs.machine import Machine
from ignite_ipu.pipeline.costs.memory import Strategy
from ignite_ipu.pipeline.costs.optimizer_state import OptimizerState
from ignite_ipu.pipeline.planning.plan import Plan
from ignite_ipu.pipeline.planning.planner import plan as make_plan
from ignite_ipu.pipeline.profiling.profile import Profile

__all__ = ["load_plan", "save_plan"]

_FORMAT, _VERSION = "ignite-ipu plan", 1
_LARGEST_FILE = 16 << 20
_MOST_LAYERS = 1024
_LARGEST = 1 << 62
_MOST_REPETITIONS = 1 << 31
_SHOWN = 8
_PARTS: Dict[str, Type[Any]] = {
    "profile": Profile,
    "machine": Machine,
    "optimizer": OptimizerState,
    "strategy": Strategy,
}
_FACTORS = ("replicas", "accumulation", "device_iterations")


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
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        **{name: dataclasses.asdict(getattr(plan, name)) for name in _PARTS},
        "stages": [{"ipu": stage.ipu, "layers": len(stage.layers)} for stage in plan.stages],
        **{name: getattr(plan, name) for name in _FACTORS},
        "reasons": list(plan.reasons),
    }
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    with whole_file(Path(path)) as file:
        file.write(text.encode())


def load_plan(path: Union[str, os.PathLike[str]], model: Optional[nn.Module] = None) -> Plan:
    """Read a plan that `save_plan` wrote. Nothing in the file is run, and its size and depth are bounded.

    Args:
        path: The file.
        model: The model that it is to be used for; its layers and parameters are compared with the plan's.

    Raises:
        PlanError: The file is no plan, is of another version, contradicts itself, or is for another model; the message
            names what differs. The plan does not fit the machine that it is for.
        OSError: It cannot be read.
    """
    name = os.fspath(path)
    try:
        found = _planned(_content(name))
    except PlanError as error:
        raise PlanError(f"{name} is no plan: {error}") from None
    found.check()
    if model is not None:
        differences = _differences(found.profile, model)
        if differences:
            rest = len(differences) - _SHOWN
            raise PlanError(
                f"{name} is a plan for another model ({found.profile.model}; this is a {type(model).__name__}): "
                f"{'; '.join(differences[:_SHOWN])}{f'; and {rest} more' if rest > 0 else ''}. Plan this model, "
                "for example with `ignite-ipu plan --save`."
            )
    return found


def _content(name: str) -> Mapping[str, Any]:
    size = os.stat(name).st_size
    if size > _LARGEST_FILE:
        _refuse(f"it has {size} bytes, and a plan has at most {_LARGEST_FILE}")
    with open(name, "rb") as file:
        data = file.read(_LARGEST_FILE + 1)
    try:
        # What nests too deep for Python's own limit is refused by it.
        content = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        _refuse(f"it is no JSON ({str(error)[:200]})")
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        _refuse(f"it does not say that its format is {_FORMAT!r}")
    if content.get("version") != _VERSION:
        _refuse(
            f"it is of version {str(content.get('version'))[:20]}, and this library reads version {_VERSION}; "
            "plan again, or use the library that wrote it"
        )
    return content


def _planned(content: Mapping[str, Any]) -> Plan:
    wanted = {"format", "version", *_PARTS, "stages", *_FACTORS, "reasons"}
    if set(content) != wanted:
        _refuse(f"it has the entries {_listed(set(content))} instead of {_listed(wanted)}")
    parts = {name: _value(kind, content[name], name) for name, kind in _PARTS.items()}
    _check_profile(parts["profile"])
    _check_machine(parts["machine"])
    factors = {name: _count(content[name], name, _MOST_REPETITIONS) for name in _FACTORS}
    reasons = _value(Tuple[str, ...], content["reasons"], "reasons")
    layers = len(parts["profile"].layers)
    stages = content["stages"]
    if not isinstance(stages, list) or not 0 < len(stages) <= layers:
        _refuse("its stages are no list of as many as there are layers, at most")
    for stage in stages:
        if not isinstance(stage, dict) or set(stage) != {"ipu", "layers"}:
            _refuse("a stage of it does not consist of ipu and layers")
    sizes = [_count(stage["layers"], "layers of a stage", layers) for stage in stages]
    ipus = [_count(stage["ipu"], "ipu", layers, least=0) for stage in stages]
    if sum(sizes) != layers:
        _refuse(f"its stages have {sum(sizes)} layers together, but the model has {layers}")
    if set(ipus) != set(range(len(set(ipus)))):
        _refuse(f"its stages are on the IPUs {sorted(set(ipus))}, which leave gaps")
    try:
        found = make_plan(
            parts["profile"],
            1 + max(ipus),
            replicas=factors["replicas"],
            strategy=parts["strategy"],
            optimizer=parts["optimizer"],
            machine=parts["machine"],
            accumulation=factors["accumulation"],
            device_iterations=factors["device_iterations"],
            sizes=sizes,
            stage_ipus=ipus,
        )
    except PlanError:
        raise
    except (ArithmeticError, ValueError) as error:
        _refuse(f"its numbers lead to nothing ({error})")
    return dataclasses.replace(found, reasons=reasons)


def _value(kind: Any, value: Any, where: str) -> Any:
    """Return a value of the wanted type, made of plain data."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        names = list(hints)
        if not isinstance(value, dict) or set(value) != set(names):
            _refuse(f"its {where} does not consist of {_listed(names)}")
        try:
            return kind(**{name: _value(hints[name], value[name], f"{where}.{name}") for name in names})
        except PlanError:
            raise
        except (ArithmeticError, ValueError) as error:
            _refuse(f"its {where} makes no sense ({error})")
    if kind is bool or kind is str:
        if type(value) is not kind:
            _refuse(f"its {where} is no {kind.__name__}")
        return value
    if kind is int:
        return _count(value, where, _LARGEST, least=0)
    if kind is float:
        if type(value) not in (int, float) or not 0 <= value <= _LARGEST or not math.isfinite(value):
            _refuse(f"its {where} is no number from 0 on")
        return float(value)
    # What is left are tuples of one kind of item.
    (item, _) = kind.__args__
    if not isinstance(value, list):
        _refuse(f"its {where} is no list")
    return tuple(_value(item, entry, where) for entry in value)


@functools.lru_cache(maxsize=None)
def _hints(kind: Type[Any]) -> Dict[str, Any]:
    found = get_type_hints(kind)
    return {field.name: found[field.name] for field in dataclasses.fields(kind)}


def _count(value: Any, where: str, most: int, least: int = 1) -> int:
    if type(value) is not int or not least <= value <= most:
        _refuse(f"its {where} is no whole number from {least} to {most}")
    return value


def _check_profile(profile: Profile) -> None:
    count = len(profile.layers)
    if count > _MOST_LAYERS:
        _refuse(f"it has {count} layers, and a plan has at most {_MOST_LAYERS}")
    if len(set(profile.names)) != count:
        _refuse("two layers of it have the same name")
    if not 0 < profile.samples <= _LARGEST >> 32:
        _refuse("its micro-batch has no samples")
    for crossing in profile.crossings:
        if not crossing.producer < crossing.consumer < count:
            _refuse("a tensor of it goes to a layer before the one that makes it, or to none")
    for layer in profile.layers:
        if any(saved.producer >= count for saved in layer.saved):
            _refuse(f"{layer.name!r} keeps a tensor of a layer that there is not")
    for shared in profile.shared:
        if len(shared.layers) < 2 or any(number >= count for number in shared.layers):
            _refuse(f"{shared.name!r} is shared by layers that there are not")


def _check_machine(machine: Machine) -> None:
    for field in dataclasses.fields(machine):
        value = getattr(machine, field.name)
        if isinstance(value, (int, float)) and value <= 0 and field.name not in ("hop_latency", "call_overhead"):
            _refuse(f"its machine.{field.name} is {value}")


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
    known = {*planned, *profile.unused}
    return found + [f"parameter {name!r} is not in the plan" for name in own if name not in known]


def _refuse_constant(text: str) -> NoReturn:
    _refuse(f"{text} is no number")


def _refuse(why: str) -> NoReturn:
    raise PlanError(f"{why}.")


def _listed(names: Iterable[Any]) -> str:
    return listed(sorted(str(name)[:40] for name in names), 20)
