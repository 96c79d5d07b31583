"""Description of an optimizer as an executor reads it: hyper-parameters, each compiled in or open to change."""

from __future__ import annotations

import dataclasses
import enum
import functools
import logging
import math
from typing import Any, Dict, Iterable, Iterator, Mapping, Optional, Set, Tuple

import torch

from ignite_ipu.emulator.enums import MeanReductionStrategy
from ignite_ipu.emulator.errors import Error, backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.optim.optimizer import ACCUMULATION_TYPES, EXTRAS, LAMB, MOMENTS, SGD, Adam, AdamW, RMSprop
from ignite_ipu.emulator.optim.optimizer import Optimizer as PoptorchOptimizer
from ignite_ipu.emulator.options import Options

_NOT_NEGATIVE = ("lr", "weight_decay", "momentum", "dampening", "eps")
_TORCH_CONSTANTS: Mapping[str, float] = {
    "weight_decay": 0.0,
    "momentum": 0.0,
    "dampening": 0.0,
    "eps": 1e-8,
    "loss_scaling": 1.0,
    "velocity_scaling": 1.0,
}
"""A plain torch optimizer's value is a constant exactly when it equals the one here."""
_ALWAYS_CONSTANT = ("betas", "alpha", "nesterov")
_ADAMW_WEIGHT_DECAY = 0.01
_TORCHS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)
_CLASSES = {*_TORCHS, SGD, Adam, AdamW, RMSprop, LAMB}
_READ_FROM_THE_OBJECT = {*EXTRAS, "state_dict"}


class UpdateRule(enum.Enum):
    """Update that an optimizer stands for; velocity and accumulated gradient share a tensor in SGD1, not in SGD2."""

    SGD1 = "SGD1"
    SGD2 = "SGD2"
    ADAM = "ADAM"
    ADAMW = "ADAMW"
    ADAMW_NO_BIAS = "ADAMW_NO_BIAS"
    RMSPROP = "RMSPROP"
    RMSPROP_CENTERED = "RMSPROP_CENTERED"
    LAMB = "LAMB"
    LAMB_NO_BIAS = "LAMB_NO_BIAS"


_ADAM = ("lr", "beta1", "beta2", "eps", "weight_decay")
_RMSPROP = ("lr", "alpha", "eps", "weight_decay", "momentum")
_SGD = ("lr", "momentum", "dampening", "weight_decay", "nesterov")

GROUP_VALUES: Dict[UpdateRule, Tuple[str, ...]] = {
    UpdateRule.SGD1: (*_SGD, "velocity_scaling"),
    UpdateRule.SGD2: _SGD,
    **dict.fromkeys((UpdateRule.ADAM, UpdateRule.ADAMW, UpdateRule.ADAMW_NO_BIAS), _ADAM),
    **dict.fromkeys((UpdateRule.RMSPROP, UpdateRule.RMSPROP_CENTERED), _RMSPROP),
    **dict.fromkeys((UpdateRule.LAMB, UpdateRule.LAMB_NO_BIAS), (*_ADAM, "max_weight_norm")),
}
"""Numbers that each parameter group of an optimizer has."""
_UNCLIPPED = (UpdateRule.RMSPROP, UpdateRule.RMSPROP_CENTERED, UpdateRule.LAMB, UpdateRule.LAMB_NO_BIAS)


@dataclasses.dataclass(frozen=True)
class HyperParameter:
    """One number, compiled in if `constant`."""

    value: float
    constant: bool


@dataclasses.dataclass(frozen=True)
class GroupValues:
    """The numbers of one parameter group, by the names in `GROUP_VALUES`."""

    entries: Tuple[Tuple[str, HyperParameter], ...]

    @functools.cached_property
    def _by_name(self) -> Dict[str, HyperParameter]:
        # The maths reads the same few values on every update.
        return dict(self.entries)

    def __getitem__(self, name: str) -> float:
        return self._by_name[name].value

    def get(self, name: str) -> HyperParameter:
        return self._by_name[name]

    def absent(self, name: str) -> bool:
        """Return whether `name` is compiled in as zero, so that the device needs neither it nor its state."""
        return self.get(name) == HyperParameter(0.0, constant=True)


@dataclasses.dataclass(frozen=True)
class OptimizerDescription:
    """An optimizer as the device sees it; equal descriptions need no upload.

    `defaults` are the values of parameters in no group, `moment_types` those in which `Accl1` and `Accl2` are stored.
    """

    kind: UpdateRule
    groups: Tuple[GroupValues, ...]
    defaults: GroupValues
    loss_scaling: HyperParameter
    accum_type: torch.dtype = torch.float32
    moment_types: Tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float32)
    max_grad_norm: float = math.inf
    use_tf_variant: bool = False

    def values(self, group: Optional[int]) -> GroupValues:
        """Return the values of one group, or the defaults for None."""
        return self.defaults if group is None else self.groups[group]

    @property
    def compiled_in(self) -> Tuple[object, ...]:
        """Everything that a program compiled for this optimizer cannot change; hashable, with a stable `repr`."""
        numbers = ((what, number.value if number.constant else None) for what, number in self._numbers())
        return (*self._structure(), *numbers)

    def check_strategy(self, strategy: MeanReductionStrategy) -> None:
        """Refuse float16 accumulators in a program compiled for another reduction strategy than `Running`."""
        if self.accum_type is torch.float16 and strategy is not MeanReductionStrategy.Running:
            raise ValueError(
                "Invalid optimizer: the new optimizer would accumulate in torch.float16, which needs "
                f"MeanReductionStrategy.Running, but the model is compiled for {strategy.name}. "
                "Keep accum_type at torch.float32, or wrap the model anew."
            )

    def check_backend(self) -> None:
        """Refuse values that the back end does not compile or accept in an update."""
        for where, values in self._sets():
            for name in _NOT_NEGATIVE:
                if name in GROUP_VALUES[self.kind] and values[name] < 0:
                    raise backend_error(
                        f"Negative {name} ({values[name]}) in {where} of the optimizer: it must be >= 0."
                    )
            if values.absent("lr"):
                raise backend_error(
                    f"Constant, zero learning rate in {where} of the optimizer: nothing would ever train. Pass lr "
                    "explicitly, which makes it variable."
                )
        if self.loss_scaling.value == 0:
            raise backend_error("Loss scaling cannot be 0: gradients are divided by it.")
        if math.isnan(self.max_grad_norm):
            raise backend_error("The optimizer's max_grad_norm cannot be NaN: use math.inf for no clipping.")

    def check_replacement(self, new: OptimizerDescription) -> None:
        """Refuse an optimizer that the program compiled for this one cannot take."""
        for (name, old_value), (_, new_value) in zip(self._structure(), new._structure()):
            if old_value != new_value:
                raise _not_a_replacement(f"{name} was compiled as {old_value} and cannot become {new_value}")
        for (what, old), (_, now) in zip(self._numbers(), new._numbers()):
            compiled = f"{what} was compiled in as {old.value}"
            if old.constant and not now.constant:
                raise _not_a_replacement(f"Can not replace a constant value with a non constant: {compiled}")
            if now.constant and not old.constant:
                why = f"Can not replace a non constant value with a constant: {what} was compiled as a variable"
                raise _not_a_replacement(why)
            if old.constant and old.value != now.value:
                why = f"Values are constant but do not match: {compiled} and cannot become {now.value}"
                raise _not_a_replacement(why)

    def _structure(self) -> Tuple[Tuple[str, object], ...]:
        return (
            ("The type of the optimizer", self.kind.value),
            ("The number of parameter groups", len(self.groups)),
            ("accum_type", str(self.accum_type)),
            ("The type of the first-order state", str(self.moment_types[0])),
            ("The type of the second-order state", str(self.moment_types[1])),
            ("max_grad_norm", self.max_grad_norm),
            ("use_tf_variant", self.use_tf_variant),
        )

    def _sets(self) -> Iterator[Tuple[str, GroupValues]]:
        for index, values in enumerate(self.groups):
            yield f"group {index}", values
        yield "the defaults", self.defaults

    def _numbers(self) -> Iterator[Tuple[str, HyperParameter]]:
        yield "loss_scaling of the optimizer", self.loss_scaling
        for where, values in self._sets():
            for name, value in values.entries:
                yield f"{name} of {where}", value


def describe(optimizer: torch.optim.Optimizer, automatic_loss_scaling: bool = False) -> OptimizerDescription:
    """Read an optimizer of `poptorch.optim` or `torch.optim`, or of a subclass of one; errors name the unreadable part.

    With `automatic_loss_scaling` the device adjusts the loss scaling, which therefore is a variable.
    """
    kind = _kind(optimizer)
    places = _groups(optimizer)
    for where, values in (("the defaults", optimizer.defaults), *places.items()):
        if values.get("amsgrad", False):
            raise ValueError(
                f"Only non-amsgrad {_name(type(optimizer))} optimizers run on the IPU; unset it in {where}."
            )
        # Recent torch turns Adam into AdamW by a flag that PopTorch has never heard of.
        if values.get("decoupled_weight_decay", False) and not isinstance(optimizer, torch.optim.AdamW):
            raise ValueError(f"Adam with decoupled_weight_decay=True (in {where}) would run as plain Adam: use AdamW.")
    names = ("accum_type", *MOMENTS)
    if isinstance(optimizer, torch.optim.SGD):
        names = ("accum_type", "velocity_accum_type", "velocity_accum_type")
    # The types of separate accumulators say nothing about a shared one.
    types = [torch.float32 if kind is UpdateRule.SGD1 else _type(optimizer, name) for name in names]
    # Only these take a bound; AttributeTracker warns of one on the others.
    clips = isinstance(optimizer, (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW))
    bound = getattr(optimizer, "max_grad_norm", None) if clips else None
    scaling = _number(getattr(optimizer, "loss_scaling", 1.0), "loss_scaling")
    return OptimizerDescription(
        kind=kind,
        groups=tuple(_read_group(optimizer, kind, group, where) for where, group in places.items()),
        defaults=_read_group(optimizer, kind, optimizer.defaults, "defaults"),
        loss_scaling=HyperParameter(
            scaling, not automatic_loss_scaling and _is_constant(optimizer, "loss_scaling", scaling)
        ),
        accum_type=types[0],
        moment_types=(types[1], types[2]),
        max_grad_norm=math.inf if bound is None else _number(bound, "max_grad_norm"),
        use_tf_variant=isinstance(optimizer, torch.optim.RMSprop) and bool(getattr(optimizer, "use_tf_variant", False)),
    )


def _is_constant(optimizer: torch.optim.Optimizer, name: str, value: float) -> bool:
    """Return whether the argument `name` of an optimizer with this value is compiled in."""
    if isinstance(optimizer, PoptorchOptimizer):
        return optimizer.variable_attrs.isConstant(name)
    if name == "weight_decay" and isinstance(optimizer, torch.optim.AdamW):
        return value == _ADAMW_WEIGHT_DECAY
    return name in _ALWAYS_CONSTANT or (name in _TORCH_CONSTANTS and value == _TORCH_CONSTANTS[name])


def _groups(optimizer: torch.optim.Optimizer) -> Dict[str, Dict[str, Any]]:
    return {f"group {index}": group for index, group in enumerate(optimizer.param_groups)}


def _kind(optimizer: torch.optim.Optimizer) -> UpdateRule:
    if isinstance(optimizer, torch.optim.SGD):
        return UpdateRule.SGD1 if getattr(optimizer, "use_combined_accum", False) else UpdateRule.SGD2
    # AdamW first: recent torch derives it from Adam.
    if isinstance(optimizer, torch.optim.AdamW):
        return UpdateRule.ADAMW if getattr(optimizer, "bias_correction", True) else UpdateRule.ADAMW_NO_BIAS
    if isinstance(optimizer, torch.optim.Adam):
        return UpdateRule.ADAM
    if not isinstance(optimizer, (torch.optim.RMSprop, LAMB)):
        raise AssertionError(
            f"Unsupported optimizer type: {_name(type(optimizer))}. Use SGD, Adam, AdamW or RMSprop of poptorch.optim "
            "or torch.optim, or poptorch.optim.LAMB; unwrap an optimizer that another library has wrapped."
        )
    name = "bias_correction" if isinstance(optimizer, LAMB) else "centered"
    found = [optimizer.bias_correction] if isinstance(optimizer, LAMB) else []
    found += [bool(_mandatory(optimizer, group, name, where)) for where, group in _groups(optimizer).items()]
    if any(value != found[0] for value in found):
        raise AssertionError(f"All parameter groups must have the same value for the '{name}' option, not {found}.")
    if isinstance(optimizer, LAMB):
        return UpdateRule.LAMB if found[0] else UpdateRule.LAMB_NO_BIAS
    return UpdateRule.RMSPROP_CENTERED if found[0] else UpdateRule.RMSPROP


def _mandatory(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in group:
        raise AssertionError(
            f"Mandatory attribute '{name}' not found in {where} of the {_name(type(optimizer))} optimizer."
        )
    return group[name]


def _type(optimizer: torch.optim.Optimizer, name: str) -> torch.dtype:
    value = getattr(optimizer, name, torch.float32)
    if value not in ACCUMULATION_TYPES:
        raise ValueError(f"{name} must be set to either torch.float32 or torch.float16, not {value!r}.")
    return torch.float16 if value is torch.float16 else torch.float32


def _read_group(
    optimizer: torch.optim.Optimizer, kind: UpdateRule, group: Mapping[str, Any], where: str
) -> GroupValues:
    entries = []
    for name in GROUP_VALUES[kind]:
        argument = "betas" if name in ("beta1", "beta2") else name
        what = f"{argument} in {where}"
        if name == "velocity_scaling" and name not in group:
            # Nothing puts it into the groups of a torch.optim.SGD but its user.
            found, what = getattr(optimizer, name, 1.0), name
        else:
            found = _mandatory(optimizer, group, argument, where)
        if argument == "betas":
            if not isinstance(found, tuple) or len(found) != 2:
                raise AssertionError(f"Expected a pair for {what}, that is a tuple of two numbers, not {found!r}.")
            found = found[name == "beta2"]
        value = _number(found, what)
        entries.append((name, HyperParameter(value, _is_constant(optimizer, argument, value))))
    return GroupValues(tuple(entries))


def _number(value: object, what: str) -> float:
    if not isinstance(value, (int, float)):
        raise AssertionError(f"Expected a number for {what}, not {value!r} of type {_name(type(value))}.")
    return float(value)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _not_a_replacement(why: str) -> Error:
    return backend_error(
        f"The new optimizer is not a valid replacement for the compiled one. {why}. Make a value variable by passing "
        "it explicitly to a poptorch.optim optimizer, or with its variable_attrs.markAsVariable(), before compiling; "
        "or destroy() the model and compile again."
    )


class AttributeTracker:
    """Remembers the names that an executor's optimizer started with, and reports each later one once.

    Reports about names go to debug level with `relaxOptimizerAttributesChecks`.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._names: Dict[str, Set[str]] = {}
        self._logged: Set[str] = set()

    def check(self, optimizer: torch.optim.Optimizer, description: OptimizerDescription) -> None:
        """Inspect the optimizer given to `setOptimizer`; the first call sets the expected names."""
        kind = type(optimizer)
        if kind not in _CLASSES:
            self._say_once(
                f"{_name(kind)} is subclassed from classes in torch.optim or poptorch.optim: "
                "the device runs the update of the base class, and methods overridden in the subclass are not called.",
            )
        if any(group.get("maximize", False) for group in optimizer.param_groups):
            self._say_once("maximize=True has no effect on the IPU: the loss is minimised. Negate the loss instead.")
        if description.kind in _UNCLIPPED and getattr(optimizer, "max_grad_norm", math.inf) not in (math.inf, None):
            self._say_once(
                f"max_grad_norm has no effect on a {description.kind.value} optimizer: gradients are not clipped."
            )
        found: Dict[str, Iterable[str]] = {
            "optimizer attribute": vars(optimizer),
            **{f"{where} attribute": group for where, group in _groups(optimizer).items()},
            "default group variable": optimizer.defaults,
        }
        if not self._names:
            self._names = {where: set(names) for where, names in found.items()}
            return
        level = logging.DEBUG if self._options._relax_optimizer_checks else logging.WARNING
        # A group added after wrapping is compared with those that were there.
        any_group = {name for key, known in self._names.items() if key.startswith("group ") for name in known}
        for where, names in found.items():
            unexpected = sorted(set(names) - self._names.get(where, any_group) - _READ_FROM_THE_OBJECT)
            if unexpected:
                text = f"Ignoring unexpected {where} in {description.kind.value} optimizer: {unexpected}"
                self._say_once(text, level)

    def _say_once(self, text: str, level: int = logging.WARNING) -> None:
        if text not in self._logged:
            self._logged.add(text)
            logger.log(level, text)
