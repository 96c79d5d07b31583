"""Description of an optimizer as an executor reads it, and when that may replace what it compiled."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple, Type

import torch

from ignite_ipu.emulator.enums import MeanReductionStrategy
from ignite_ipu.emulator.errors import Error, backend_error
from ignite_ipu.emulator.optim.hyper_parameters import GROUP_VALUES, HyperParameter, HyperParameters, UpdateRule
from ignite_ipu.emulator.optim.lamb import LAMB
from ignite_ipu.emulator.optim.optimizer import ACCUMULATION_TYPES
from ignite_ipu.emulator.optim.optimizer import Optimizer as PoptorchOptimizer

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


@dataclasses.dataclass(frozen=True)
class OptimizerDescription:
    """An optimizer as the device sees it; equal descriptions need no upload.

    Attributes:
        kind: Which update it stands for.
        groups: The parameter groups, in order.
        defaults: Values for parameters that are in no group.
        loss_scaling: Factor on the loss before the backward pass.
        accum_type: Type in which gradients accumulate.
        moment_types: Types in which `Accl1` and `Accl2` are stored.
        max_grad_norm: Bound of the global 2-norm, infinite when there is none.
        use_tf_variant: RMSprop follows TensorFlow.
    """

    kind: UpdateRule
    groups: Tuple[HyperParameters, ...]
    defaults: HyperParameters
    loss_scaling: HyperParameter
    accum_type: torch.dtype = torch.float32
    moment_types: Tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float32)
    max_grad_norm: float = math.inf
    use_tf_variant: bool = False

    def values(self, group: Optional[int]) -> HyperParameters:
        """Return the values of one group, or the defaults for None."""
        return self.defaults if group is None else self.groups[group]

    @property
    def half_accumulators(self) -> bool:
        """True where gradients accumulate in float16, which needs `MeanReductionStrategy.Running`."""
        return self.accum_type is torch.float16

    @property
    def compiled_in(self) -> Tuple[object, ...]:
        """Everything that a program compiled for this optimizer cannot change; hashable, with a stable `repr`."""
        scaling = self.loss_scaling
        return (
            *(value for _, value in self._structure()),
            ("loss_scaling", scaling.value if scaling.constant else None),
            *(
                (where, tuple((name, v.value if v.constant else None) for name, v in values.entries))
                for where, values in self._sets()
            ),
        )

    def check_strategy(self, strategy: MeanReductionStrategy) -> None:
        """Refuse float16 accumulators in a program compiled for another reduction strategy than `Running`.

        Raises:
            ValueError: The compiled program divides after summing.
        """
        if self.half_accumulators and strategy is not MeanReductionStrategy.Running:
            raise ValueError(
                "Invalid optimizer: the new optimizer would accumulate in torch.float16, which needs "
                f"MeanReductionStrategy.Running, but the model is compiled for {strategy.name}. "
                "Keep accum_type at torch.float32, or wrap the model anew."
            )

    def check_backend(self) -> None:
        """Refuse values that the back end does not compile or accept in an update.

        Raises:
            Error: A value is negative, a constant learning rate or a loss scaling zero, or the norm bound NaN.
        """
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
        """Refuse an optimizer that the program compiled for this one cannot take.

        Raises:
            Error: The structure or a constant differs, or a value is constant in one of them only.
        """
        for (name, old_value), (_, new_value) in zip(self._structure(), new._structure()):
            if old_value != new_value:
                raise _not_a_replacement(f"{name} was compiled as {old_value} and cannot become {new_value}")
        _check_value("loss_scaling", "the optimizer", self.loss_scaling, new.loss_scaling)
        for (where, old_values), (_, new_values) in zip(self._sets(), new._sets()):
            for name in old_values:
                _check_value(name, where, old_values.get(name), new_values.get(name))

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

    def _sets(self) -> Iterator[Tuple[str, HyperParameters]]:
        for index, values in enumerate(self.groups):
            yield f"group {index}", values
        yield "the defaults", self.defaults


def describe(optimizer: torch.optim.Optimizer, automatic_loss_scaling: bool = False) -> OptimizerDescription:
    """Read an optimizer of `poptorch.optim` or `torch.optim`.

    Args:
        optimizer: SGD, Adam, AdamW, RMSprop, LAMB or a subclass of one.
        automatic_loss_scaling: The device adjusts the loss scaling, which therefore is a variable.

    Raises:
        AssertionError: The type is not supported, or a value is missing or not of its type.
        ValueError: An Adam has `amsgrad` or decoupled weight decay, or an accumulation type is neither float16 nor
            float32.
    """
    kind = _kind(optimizer)
    _check_features(optimizer)
    constancy = _Constancy(optimizer)
    combined = kind is UpdateRule.SGD1
    types = (torch.float32, torch.float32, torch.float32) if combined else _types(optimizer)
    # Only these take a bound; AttributeTracker warns of one on the others.
    clips = isinstance(optimizer, (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW))
    bound = getattr(optimizer, "max_grad_norm", None) if clips else None
    scaling = _number(getattr(optimizer, "loss_scaling", 1.0), "loss_scaling")
    return OptimizerDescription(
        kind=kind,
        groups=tuple(
            _read_group(optimizer, kind, group, f"group {index}", constancy)
            for index, group in enumerate(optimizer.param_groups)
        ),
        defaults=_read_group(optimizer, kind, optimizer.defaults, "defaults", constancy),
        loss_scaling=HyperParameter(scaling, not automatic_loss_scaling and constancy.of("loss_scaling", scaling)),
        accum_type=types[0],
        moment_types=types[1:],
        max_grad_norm=math.inf if bound is None else _number(bound, "max_grad_norm"),
        use_tf_variant=isinstance(optimizer, torch.optim.RMSprop) and bool(getattr(optimizer, "use_tf_variant", False)),
    )


class _Constancy:
    """Values of one optimizer that are compiled in."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._marks = optimizer.variable_attrs if isinstance(optimizer, PoptorchOptimizer) else None
        self._references: Dict[str, float] = dict(_TORCH_CONSTANTS)
        if isinstance(optimizer, torch.optim.AdamW):
            self._references["weight_decay"] = _ADAMW_WEIGHT_DECAY

    def of(self, name: str, value: float) -> bool:
        """Return whether the argument `name` with this value is constant."""
        if self._marks is not None:
            return self._marks.isConstant(name)
        return name in _ALWAYS_CONSTANT or (name in self._references and value == self._references[name])


def _kind(optimizer: torch.optim.Optimizer) -> UpdateRule:
    if isinstance(optimizer, torch.optim.SGD):
        return UpdateRule.SGD1 if getattr(optimizer, "use_combined_accum", False) else UpdateRule.SGD2
    # AdamW first: recent torch derives it from Adam.
    if isinstance(optimizer, torch.optim.AdamW):
        return UpdateRule.ADAMW if getattr(optimizer, "bias_correction", True) else UpdateRule.ADAMW_NO_BIAS
    if isinstance(optimizer, torch.optim.Adam):
        return UpdateRule.ADAM
    if isinstance(optimizer, torch.optim.RMSprop):
        centered = _common(optimizer, "centered", [])
        return UpdateRule.RMSPROP_CENTERED if centered else UpdateRule.RMSPROP
    if isinstance(optimizer, LAMB):
        return (
            UpdateRule.LAMB
            if _common(optimizer, "bias_correction", [optimizer.bias_correction])
            else UpdateRule.LAMB_NO_BIAS
        )
    raise AssertionError(
        f"Unsupported optimizer type: {_name(type(optimizer))}. Use SGD, Adam, AdamW or RMSprop of poptorch.optim or "
        "torch.optim, or poptorch.optim.LAMB; unwrap an optimizer that another library has wrapped."
    )


def _common(optimizer: torch.optim.Optimizer, name: str, found: List[bool]) -> bool:
    for index, group in enumerate(optimizer.param_groups):
        found = [*found, bool(_mandatory(optimizer, group, name, f"group {index}"))]
    if any(value != found[0] for value in found):
        raise AssertionError(f"All parameter groups must have the same value for the '{name}' option, not {found}.")
    return found[0]


def _mandatory(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in group:
        raise AssertionError(
            f"Mandatory attribute '{name}' not found in {where} of the {_name(type(optimizer))} optimizer."
        )
    return group[name]


def _check_features(optimizer: torch.optim.Optimizer) -> None:
    settings = (
        ("the defaults", optimizer.defaults),
        *((f"group {i}", g) for i, g in enumerate(optimizer.param_groups)),
    )
    for where, values in settings:
        if values.get("amsgrad", False):
            raise ValueError(
                f"Only non-amsgrad {_name(type(optimizer))} optimizers run on the IPU; unset it in {where}."
            )
        # Recent torch turns Adam into AdamW by a flag that PopTorch has never heard of.
        if values.get("decoupled_weight_decay", False) and not isinstance(optimizer, torch.optim.AdamW):
            raise ValueError(f"Adam with decoupled_weight_decay=True (in {where}) would run as plain Adam: use AdamW.")


def _types(optimizer: torch.optim.Optimizer) -> Tuple[torch.dtype, torch.dtype, torch.dtype]:
    if isinstance(optimizer, torch.optim.SGD):
        velocity = _type(optimizer, "velocity_accum_type")
        return _type(optimizer, "accum_type"), velocity, velocity
    return (
        _type(optimizer, "accum_type"),
        _type(optimizer, "first_order_momentum_accum_type"),
        _type(optimizer, "second_order_momentum_accum_type"),
    )


def _type(optimizer: torch.optim.Optimizer, name: str) -> torch.dtype:
    value = getattr(optimizer, name, torch.float32)
    if value not in ACCUMULATION_TYPES:
        raise ValueError(f"{name} must be set to either torch.float32 or torch.float16, not {value!r}.")
    return torch.float16 if value is torch.float16 else torch.float32


def _read_group(
    optimizer: torch.optim.Optimizer, kind: UpdateRule, group: Mapping[str, Any], where: str, constancy: _Constancy
) -> HyperParameters:
    entries = []
    for name in GROUP_VALUES[kind]:
        argument = "betas" if name in ("beta1", "beta2") else name
        if name == "velocity_scaling" and name not in group:
            # Nothing puts it into the groups of a torch.optim.SGD but its user.
            value = _number(getattr(optimizer, name, 1.0), name)
        elif argument == "betas":
            value = _pair(_mandatory(optimizer, group, argument, where), f"{argument} in {where}")[name == "beta2"]
        else:
            value = _number(_mandatory(optimizer, group, name, where), f"{name} in {where}")
        entries.append((name, HyperParameter(value, constancy.of(argument, value))))
    return HyperParameters(tuple(entries))


def _number(value: object, what: str) -> float:
    if not isinstance(value, (int, float)):
        raise AssertionError(f"Expected a number for {what}, not {value!r} of type {_name(type(value))}.")
    return float(value)


def _pair(value: object, what: str) -> Tuple[float, float]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise AssertionError(f"Expected a pair for {what}, that is a tuple of two numbers, not {value!r}.")
    return _number(value[0], what), _number(value[1], what)


def _name(kind: Type[object]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _check_value(name: str, where: str, old: HyperParameter, new: HyperParameter) -> None:
    if old.constant and not new.constant:
        raise _not_a_replacement(
            f"Can not replace a constant value with a non constant: {name} of {where} was compiled in as {old.value}"
        )
    if new.constant and not old.constant:
        raise _not_a_replacement(
            f"Can not replace a non constant value with a constant: {name} of {where} was compiled as a variable"
        )
    if old.constant and old.value != new.value:
        raise _not_a_replacement(
            f"Values are constant but do not match: {name} of {where} was compiled in as {old.value} and cannot become "
            f"{new.value}"
        )


def _not_a_replacement(why: str) -> Error:
    return backend_error(
        f"The new optimizer is not a valid replacement for the compiled one. {why}. Make a value variable by passing "
        "it explicitly to a poptorch.optim optimizer, or with its variable_attrs.markAsVariable(), before compiling; "
        "or destroy() the model and compile again."
    )
