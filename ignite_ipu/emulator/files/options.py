"""`Options` as data that can be kept in a file and read back without running code from it."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Type

from torch import nn

from ignite_ipu.emulator.enums import AutoStage, Liveness, OutputMode
from ignite_ipu.emulator.files.container import DamagedFile
from ignite_ipu.emulator.files.plain_data import NotPlain, decode, encode
from ignite_ipu.emulator.options.guarded import OptionsDict
from ignite_ipu.emulator.options.root import Anchor, Options
from ignite_ipu.emulator.options.strategies import (
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    _AutomaticStages,
    _IExecutionStrategy,
    _IPhasedExecution,
    _ListedStages,
)
from ignite_ipu.emulator.trace.autocasting import Policy

_PARTS = ("Training", "Precision", "Distributed", "TensorLocations", "Jit")
_PRIVATE = (
    "_show_compilation_progress_bar",
    "_relax_optimizer_checks",
    "_source_location_excludes",
    "_module_namescope_enabled",
)
_STRATEGIES: Dict[str, Type[_IExecutionStrategy]] = {
    kind.__name__: kind
    for kind in (PipelinedExecution, ShardedExecution, ParallelPhasedExecution, SerialPhasedExecution)
}


def options_to_data(options: Options) -> Any:
    """Return everything that `options` hold, as something that JSON can hold.

    Raises:
        NotPlain: They hold an object of a class of the user's own.
    """
    values = dict(options._values)
    values["anchored_tensors"] = {short: tuple(anchor) for short, anchor in values["anchored_tensors"].items()}
    return encode(
        {
            "values": values,
            "parts": {part: _part_values(getattr(options, part)) for part in _PARTS},
            "popart": options._Popart.options,
            "private": {name: options.__dict__[name] for name in _PRIVATE},
            "strategy": _strategy_to_data(options._execution_strategy),
        },
        tensors={},
    )


def options_from_data(data: Any) -> Options:
    """Return unfrozen options that hold what `options_to_data` was given; the environment has no say in them.

    Raises:
        DamagedFile: `data` does not come from there.
    """
    found = decode(data, {})
    options = Options()
    try:
        values = found["values"]
        anchors = {str(short): Anchor(*fields) for short, fields in values["anchored_tensors"].items()}
        _take(options, {**values, "anchored_tensors": anchors})
        for part in _PARTS:
            _take(getattr(options, part), _read_policy(found["parts"][part]))
        options._Popart.options = {str(name): value for name, value in found["popart"].items()}
        for name in _PRIVATE:
            if type(found["private"][name]) is not type(options.__dict__[name]):
                raise TypeError(name)
            options.__dict__[name] = found["private"][name]
        options.__dict__["_execution_strategy"] = _strategy_from_data(found["strategy"])
        OutputMode(options.output_mode)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise DamagedFile(f"its options make no sense ({type(error).__name__}: {error})") from error
    return options


def _take(part: OptionsDict, values: Dict[str, Any]) -> None:
    for name, value in values.items():
        known: Optional[Any] = part._values.get(name)
        if known is not None and not isinstance(value, (type(known), int)):
            raise TypeError(f"{name} cannot be {value!r}")
    part.__dict__["_values"] = dict(values)


def _part_values(part: OptionsDict) -> Dict[str, Any]:
    values = dict(part._values)
    policy = values.get("autocast_policy")
    if policy is not None:
        values["autocast_policy"] = {
            kind: [*sorted(policy._names[kind]), *map(_torch_module_name, policy._modules[kind])]
            for kind in policy._names
        }
    return values


def _read_policy(values: Dict[str, Any]) -> Dict[str, Any]:
    policy = values.get("autocast_policy")
    if policy is None:
        return values
    operations = {kind: [_operation(name) for name in names] for kind, names in policy.items()}
    return {**values, "autocast_policy": Policy(**operations)}


def _torch_module_name(kind: type) -> str:
    if getattr(nn, kind.__name__, None) is not kind:
        raise NotPlain(f"the module class {kind.__qualname__} in an autocast policy")
    return f"nn.{kind.__name__}"


def _operation(name: str) -> Any:
    if not name.startswith("nn."):
        return name
    kind = getattr(nn, name[len("nn.") :])
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise TypeError(f"{name} is no module")
    return kind


def _strategy_to_data(strategy: _IExecutionStrategy) -> Dict[str, Any]:
    name = type(strategy).__name__
    if _STRATEGIES.get(name) is not type(strategy):
        raise NotPlain(f"the execution strategy {type(strategy).__qualname__}")
    if isinstance(strategy, _IPhasedExecution):
        return {
            "class": name,
            "phases": [[_stage_to_data(stage) for stage in phase.stages] for phase in strategy._phases],
            "liveness": strategy._tensors_liveness,
            "separate_backward_phase": strategy._separate_backward_phase,
        }
    manager = strategy._stages_manager
    if isinstance(manager, _AutomaticStages):
        return {"class": name, "automatic": manager._mode}
    assert isinstance(manager, _ListedStages)
    return {"class": name, "stages": [_stage_to_data(stage) for stage in manager._stages]}


def _strategy_from_data(data: Dict[str, Any]) -> _IExecutionStrategy:
    kind: Any = _STRATEGIES[data["class"]]
    strategy: _IExecutionStrategy
    if "automatic" in data:
        strategy = kind(AutoStage(data["automatic"]))
    elif "stages" in data:
        strategy = kind(*[_stage_from_data(stage) for stage in data["stages"]])
    else:
        phased: _IPhasedExecution = kind(
            *[Phase(*[_stage_from_data(stage) for stage in phase]) for phase in data["phases"]]
        )
        phased._tensors_liveness = Liveness(data["liveness"])
        phased.useSeparateBackwardPhase(data["separate_backward_phase"])
        strategy = phased
    return strategy


def _stage_to_data(stage: Stage) -> List[Any]:
    return [list(stage.blocks), stage._ipu]


def _stage_from_data(data: List[Any]) -> Stage:
    blocks, ipu = data
    stage = Stage(*blocks)
    return stage if ipu is None else stage.ipu(ipu)
