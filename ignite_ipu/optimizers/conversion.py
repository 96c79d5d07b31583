"""A torch optimizer becomes the PopTorch optimizer that computes the same updates on the device.

PopTorch also accepts torch's optimizers as they are, but then it decides by value which hyper-parameters may change
later, ignores some arguments without a word, and never gives the state back. So they are always converted.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any, Collection, Dict, FrozenSet, Iterable, List, Optional

import torch

from ignite_ipu import backend
from ignite_ipu.capabilities.optimizers import ARGUMENTS, ON_THE_HOST, TORCH
from ignite_ipu.capabilities.table import Treatment
from ignite_ipu.errors import OptimizerError, did_you_mean, logger
from ignite_ipu.optimizers.kinds import OptimizerKind, kind_of_device, kind_of_torch, substituted
from ignite_ipu.optimizers.receipt import Receipt, Row
from ignite_ipu.poptorch_types import DeviceOptimizer

# The entries that torch's schedulers leave in groups, and the ones that they change.
_SCHEDULED = (
    ("initial_lr", ("lr",)),
    ("max_momentum", ("momentum", "betas")),
    ("base_momentum", ("momentum", "betas")),
)
# Arguments of torch's classes that the device's update lacks, each with the reason and the way out.
REFUSED = {entry.argument: entry.reason for entry in ARGUMENTS if entry.treatment is Treatment.UPDATES_ON_HOST}


@dataclasses.dataclass(frozen=True)
class Conversion:
    """A user's optimizer and the one on the device.

    Attributes:
        optimizer: The `poptorch.optim` one; `source` itself if that is one already.
        kind: The kind of both.
        variable: Hyper-parameters that may change while the compiled program is in use.
        receipt: The outcome for every attribute.
        maximizes: Whether the device has to minimise the negated loss, since the source maximises.
    """

    source: torch.optim.Optimizer
    optimizer: DeviceOptimizer
    kind: OptimizerKind
    variable: FrozenSet[str]
    receipt: Receipt
    maximizes: bool = False

    @property
    def constant(self) -> FrozenSet[str]:
        """Hyper-parameters that are constants of the compiled program."""
        return frozenset({*self.kind.numbers, "loss_scaling"} - self.variable)

    def with_variable(self, names: Iterable[str]) -> Conversion:
        """Return the conversion with these hyper-parameters variable, too, because a schedule changes them.

        The optimizer on the device is the same one, which must not be compiled yet.

        Raises:
            OptimizerError: One of them cannot change on an IPU.
        """
        wanted = frozenset(names) - self.variable
        if not wanted:
            return self
        _check_names(self.kind, wanted, frozenset())
        _refuse_variable_dampening(wanted)
        variable = self.variable | wanted
        problem = None
        if not self.passed_through and getattr(self.optimizer, "max_grad_norm", None) not in (None, math.inf):
            problem = clipping_problem(self.source, variable)
        if problem is not None:
            raise OptimizerError(
                f"A schedule changes {', '.join(sorted(wanted))}, and gradients are clipped: {problem}"
            )
        for name in wanted:
            self.optimizer.variable_attrs.markAsVariable(name)
        rows = [
            dataclasses.replace(row, on_device="variable", note="") if row.attribute in wanted else row
            for row in self.receipt
        ]
        known = {row.attribute for row in rows}
        rows += [row for row in _scheduled_rows(sorted(wanted), variable) if row.attribute not in known]
        receipt = dataclasses.replace(self.receipt, rows=tuple(rows))
        return dataclasses.replace(self, variable=variable, receipt=receipt)

    @property
    def passed_through(self) -> bool:
        """True if the user's optimizer is PopTorch's own."""
        device: object = self.optimizer
        return device is self.source

    def compiled_in(self) -> Dict[str, str]:
        """Return the optimizer's values that a compiled program holds, in words, by name."""
        groups, whole = self.optimizer.param_groups, vars(self.optimizer)
        names = {*self.constant, *self.kind.structural, *self.kind.device_arguments} - self.variable
        found = {f"its {name}": repr([group.get(name, whole.get(name)) for group in groups]) for name in sorted(names)}
        sizes = [len(group["params"]) for group in groups]
        if self.maximizes:
            found["its direction"] = "maximize"
        return {
            "the optimizer": self.kind.name,
            "its groups": repr(sizes),
            "what may change": repr(sorted(self.variable)),
            **found,
        }


def convert_optimizer(
    optimizer: Any,
    *,
    variable: Iterable[str] = (),
    constant: Iterable[str] = (),
    loss_scaling: Optional[float] = None,
    default_loss_scaling: Optional[float] = None,
    max_grad_norm: Optional[float] = None,
    accum_type: Optional[torch.dtype] = None,
    velocity_accum_type: Optional[torch.dtype] = None,
    first_order_momentum_accum_type: Optional[torch.dtype] = None,
    second_order_momentum_accum_type: Optional[torch.dtype] = None,
    substitute: Optional[str] = None,
) -> Conversion:
    """Return the PopTorch optimizer for a torch one, with a receipt of each attribute.

    The learning rate and every other hyper-parameter that is not zero becomes variable: changing a number costs the
    device next to nothing. Zeros become constant: a variable zero keeps a momentum buffer for every weight, or adds a
    decay of nothing to it in every step. `variable` and `constant` overrule that.

    Args:
        optimizer: SGD, Adam, AdamW or RMSprop of `torch.optim`, or any of `poptorch.optim`, which is used as it is.
        variable: Hyper-parameters that may change later, also zeros.
        constant: Hyper-parameters to compile in.
        loss_scaling: Factor of the loss during backward. An attribute of that name on the optimizer counts as well, as
            it does for PopTorch.
        default_loss_scaling: The factor where neither says one; it is logged.
        max_grad_norm: Clip gradients to this global norm; for Adam, AdamW, and SGD without momentum.
        accum_type: Type in which gradients are accumulated, float32 or float16.
        velocity_accum_type: Type of SGD's velocity.
        first_order_momentum_accum_type: Type of the first moments.
        second_order_momentum_accum_type: Type of the second moments.
        substitute: "closest": an optimizer that an IPU lacks becomes the closest one that it has, for good. NAdam,
            RAdam, Adamax and SparseAdam become an Adam, ASGD an SGD, and amsgrad is left out. The receipt then is a
            warning.

    Raises:
        OptimizerError: The optimizer cannot run on an IPU, or an argument does not apply to it. If it is about
            attributes, `error.receipt` lists all of them.
        TypeError: `optimizer` is no optimizer.
    """
    source = _unwrapped(optimizer)
    if substitute not in (None, "closest"):
        raise OptimizerError(f'substitute is {substitute!r}; it must be None or "closest".')
    changed = substituted(source) if substitute else []
    given = {
        "loss_scaling": loss_scaling,
        "max_grad_norm": max_grad_norm,
        "accum_type": accum_type,
        "velocity_accum_type": velocity_accum_type,
        "first_order_momentum_accum_type": first_order_momentum_accum_type,
        "second_order_momentum_accum_type": second_order_momentum_accum_type,
    }
    asked = {name: value for name, value in given.items() if value is not None}
    if isinstance(source, backend.poptorch().optim.Optimizer):
        return _pass_through(source, frozenset(variable), frozenset(constant), asked)
    kind = kind_of_torch(source)
    for name in (*kind.device_arguments, "velocity_scaling"):
        if name not in asked and hasattr(source, name):
            asked[name] = getattr(source, name)
    if default_loss_scaling is not None and "loss_scaling" not in asked:
        asked["loss_scaling"] = default_loss_scaling
        logger.info(
            "Loss scaling is %g, since products are in half precision: gradients are multiplied by it on their way to "
            "the weights. loss_scaling=... sets another factor.",
            default_loss_scaling,
        )
    _check_device_arguments(source, kind, asked)
    refuse_what_the_device_lacks(source, kind, asked)
    changing = _variable(source, kind, frozenset(variable), frozenset(constant), asked)
    problem = clipping_problem(source, changing) if "max_grad_norm" in asked else None
    if problem is not None:
        refused = Row("max_grad_norm", str(asked["max_grad_norm"]), "refused", "", problem)
        message = f"max_grad_norm={asked['max_grad_norm']!r}: {problem}"
        raise _refusal(message, source, kind, [refused], asked, changing)
    rows = [Row(name, value, "substituted", "", lost) for name, value, lost in changed]
    rows += _kept_rows(source, kind, changing) + _argument_rows(asked, changing) + _dropped_rows(source)
    receipt = _receipt(source, kind, rows + _scheduled_rows(_scheduled(source, kind), changing))
    if changed:
        logger.warning("%s", receipt)
    device = _device_optimizer(source, kind, changing, asked)
    return Conversion(source, device, kind, changing, receipt, _maximizes(source))


def hyper_parameter(name: str, value: Any) -> Any:
    """Return a hyper-parameter as PopTorch takes it: a float, a bool, or a tuple of two floats."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(hyper_parameter(name, item) for item in value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise OptimizerError(f"{name} of the optimizer is {value!r}, which is no number.") from None
    if not math.isfinite(number):
        raise OptimizerError(f"{name} of the optimizer is {number}, which no update survives.")
    return number


def clipping_problem(optimizer: torch.optim.Optimizer, variable: Collection[str] = ()) -> Optional[str]:
    """Return why an IPU would not clip the gradients of an optimizer's parameters; None when it would.

    SGD clips the input of its weight update. With momentum this is the velocity, which contains the weight decay;
    without momentum it is the gradient, before the decay is added.
    """
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        return None
    kind = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.SGD):
        return f"{kind} cannot clip gradients on an IPU. Use Adam, AdamW, or SGD without momentum."
    momenta = [group["momentum"] for group in optimizer.param_groups]
    if not any(momenta) and "momentum" not in variable:
        return None
    return (
        f"with momentum={max(momenta)!r} an IPU's {kind} clips the velocity, not the gradients as "
        f"clip_grad_norm_ does. Use Adam, AdamW, or {kind} whose momentum is 0 and constant; or, to clip the "
        f"velocity, poptorch.optim.{kind}(..., max_grad_norm=...)."
    )


def _unwrapped(optimizer: Any) -> Any:
    # accelerate's wrapper is an Optimizer by inheritance only: the groups and the class that count are inside it.
    if type(optimizer).__name__ == "AcceleratedOptimizer" and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"The optimizer is a {type(optimizer).__qualname__}; a torch.optim.Optimizer is needed.")
    return optimizer


def _pass_through(
    optimizer: Any, variable: FrozenSet[str], constant: FrozenSet[str], asked: Dict[str, Any]
) -> Conversion:
    kind = kind_of_device(optimizer)
    if asked:
        raise OptimizerError(
            f"{', '.join(asked)} cannot be given for an optimizer of poptorch.optim: pass it to poptorch.optim."
            f"{kind.name}(...) itself."
        )
    refuse_what_the_device_lacks(optimizer, kind)
    if _maximizes(optimizer):
        raise OptimizerError(
            f"maximize=True of poptorch.optim.{kind.name}: PopTorch ignores it and would minimize. Use torch.optim."
            f"{kind.name}(..., maximize=True), which is honoured, or negate the loss."
        )
    _check_names(kind, variable, constant)
    for name in variable:
        optimizer.variable_attrs.markAsVariable(name)
    for name in constant:
        optimizer.variable_attrs.markAsConstant(name)
    changing = frozenset(
        name for name in (*kind.numbers, "loss_scaling") if not optimizer.variable_attrs.isConstant(name)
    )
    receipt = _receipt(optimizer, kind, _kept_rows(optimizer, kind, changing))
    return Conversion(optimizer, optimizer, kind, changing, receipt)


def _refusal(
    message: str,
    source: torch.optim.Optimizer,
    kind: OptimizerKind,
    refused: List[Row],
    asked: Dict[str, Any],
    variable: Optional[FrozenSet[str]] = None,
) -> OptimizerError:
    """Return the error for attributes that cannot be converted, with the table of all attributes."""
    if variable is None:
        variable = _variable_by_value(source, kind, asked)
    rows = _kept_rows(source, kind, variable) + _argument_rows(asked, variable) + _dropped_rows(source)
    rows += _scheduled_rows(_scheduled(source, kind), variable)
    names = {row.attribute for row in refused}
    receipt = _receipt(source, kind, refused + [row for row in rows if row.attribute not in names])
    return OptimizerError(f"{message}\n{receipt}", receipt)


def refuse_what_the_device_lacks(
    optimizer: torch.optim.Optimizer, kind: OptimizerKind, asked: Optional[Dict[str, Any]] = None
) -> None:
    """Refuse hyper-parameters with which no optimizer is converted."""
    rows = [
        Row(name, str(True), "refused", "", note)
        for name, note in REFUSED.items()
        if any(group.get(name, False) for group in optimizer.param_groups)
    ]
    if len({bool(group.get("maximize", False)) for group in optimizer.param_groups}) > 1:
        note = "one loss is negated for all groups, so it must be the same for all"
        rows.append(Row("maximize", _values(optimizer, "maximize"), "refused", "", note))
    if kind.name == "SGD" and any(group["momentum"] and group["dampening"] for group in optimizer.param_groups):
        note = (
            "torch leaves the first velocity undamped and PopTorch does not, so the weights would part from the first "
            "step on. Use dampening=0 with the learning rate multiplied by 1 - dampening"
        )
        rows.append(Row("dampening", _values(optimizer, "dampening"), "refused", "", note))
    if kind.name == "RMSprop" and len({bool(group["centered"]) for group in optimizer.param_groups}) > 1:
        rows.append(
            Row("centered", _values(optimizer, "centered"), "refused", "", "it must be the same for all groups")
        )
    if rows:
        reasons = "; ".join(f"{row.attribute}={row.value}: {row.note}" for row in rows)
        message = f"{type(optimizer).__name__} cannot be converted for an IPU. {reasons}. {ON_THE_HOST}"
        raise _refusal(message, optimizer, kind, rows, asked or {})


def _maximizes(optimizer: torch.optim.Optimizer) -> bool:
    return any(group.get("maximize", False) for group in optimizer.param_groups)


def _check_device_arguments(source: torch.optim.Optimizer, kind: OptimizerKind, asked: Dict[str, Any]) -> None:
    for name, value in asked.items():
        if name not in kind.device_arguments:
            takes = f"{name} does not apply to {kind.name} on an IPU; it takes {', '.join(kind.device_arguments)}."
            refused = [Row(name, str(value), "refused", "", "the device's update has no such argument")]
            raise _refusal(takes, source, kind, refused, asked)
    for name, value in asked.items():
        if name.endswith("accum_type"):
            if value not in (torch.float16, torch.float32):
                raise OptimizerError(f"{name} must be torch.float32 or torch.float16, got {value!r}.")
        elif hyper_parameter(name, value) <= 0:
            raise OptimizerError(f"{name} must be positive, got {value!r}.")


def _check_names(kind: OptimizerKind, variable: FrozenSet[str], constant: FrozenSet[str]) -> None:
    known = (*kind.numbers, "loss_scaling")
    for name in (*variable, *constant):
        if name in kind.structural:
            raise OptimizerError(f"{name} is part of the compiled update of {kind.name} and cannot be made variable.")
        if name not in known:
            raise OptimizerError(f"{kind.name} has no hyper-parameter {name!r}.{did_you_mean(name, known)}")
    both = sorted(variable & constant)
    if both:
        raise OptimizerError(f"{', '.join(both)} cannot be variable and constant at once.")


def _variable(
    optimizer: torch.optim.Optimizer,
    kind: OptimizerKind,
    variable: FrozenSet[str],
    constant: FrozenSet[str],
    asked: Dict[str, Any],
) -> FrozenSet[str]:
    _check_names(kind, variable, constant)
    _refuse_variable_dampening(variable)
    return frozenset((_variable_by_value(optimizer, kind, asked) | variable) - constant)


def _refuse_variable_dampening(variable: Collection[str]) -> None:
    if "dampening" in variable:
        raise OptimizerError("dampening cannot be variable: only SGD without it does the same on an IPU as in torch.")


def _variable_by_value(optimizer: torch.optim.Optimizer, kind: OptimizerKind, asked: Dict[str, Any]) -> FrozenSet[str]:
    """Return the hyper-parameters that are variable if nothing else is given: those that are not zero or scheduled."""
    by_value = {
        name for name in kind.numbers if name == "lr" or any(group[name] != 0 for group in optimizer.param_groups)
    }
    if asked.get("loss_scaling", 1.0) != 1.0:
        by_value.add("loss_scaling")
    # torch ignores dampening without momentum, and with momentum it is refused: on the device it is always zero.
    by_value.discard("dampening")
    by_value.update(_scheduled(optimizer, kind))
    return frozenset(by_value)


def _scheduled(optimizer: torch.optim.Optimizer, kind: OptimizerKind) -> List[str]:
    """Return the hyper-parameters that attached schedulers of torch's change."""
    marks = {mark for group in optimizer.param_groups for mark in group}
    found = {name for mark, names in _SCHEDULED if mark in marks for name in names if name in kind.numbers}
    return sorted(found)


def _device_optimizer(
    optimizer: torch.optim.Optimizer, kind: OptimizerKind, variable: FrozenSet[str], asked: Dict[str, Any]
) -> Any:
    names = (*kind.numbers, *kind.structural)
    groups: List[Dict[str, Any]] = []
    for group in optimizer.param_groups:
        groups.append({"params": list(group["params"]), **{name: _device_value(name, group[name]) for name in names}})
    defaults = {name: _device_value(name, optimizer.defaults[name]) for name in names}
    device = getattr(backend.poptorch().optim, kind.name)(groups, **defaults, **asked)
    for name in (*names, "loss_scaling"):
        if name in variable:
            device.variable_attrs.markAsVariable(name)
        else:
            device.variable_attrs.markAsConstant(name)
    return device


def _device_value(name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        warnings.warn(
            f"The optimizer's {name} is a tensor; the device gets its value as a number, {float(value)}.", stacklevel=5
        )
    return 0.0 if name == "dampening" else hyper_parameter(name, value)


def _kept_rows(optimizer: torch.optim.Optimizer, kind: OptimizerKind, variable: FrozenSet[str]) -> List[Row]:
    rows = []
    for name in kind.numbers:
        role = "variable" if name in variable else "constant"
        value, fate, note = _values(optimizer, name), "kept", ""
        if name == "dampening" and any(group[name] for group in optimizer.param_groups):
            fate, note = "mapped", "0 on the device: torch ignores dampening without momentum"
        elif any(isinstance(group[name], torch.Tensor) for group in optimizer.param_groups):
            fate, note = "mapped", "from a tensor to a number"
        elif role == "constant" and not any(group[name] for group in optimizer.param_groups):
            note = f"a variable zero would cost memory and time; variable=({name!r},) makes it variable"
        rows.append(Row(name, value, fate, role, note))
    rows += [Row(name, _values(optimizer, name), "kept", "compiled in") for name in kind.structural]
    if _maximizes(optimizer):
        rows.append(Row("maximize", "True", "mapped", "compiled in", _sentence("maximize")))
    if kind.name == "AdamW" and not isinstance(optimizer, torch.optim.AdamW):
        rows.append(Row("decoupled_weight_decay", "True", "mapped", "compiled in", _sentence("decoupled_weight_decay")))
    return rows


def _sentence(argument: str) -> str:
    return ARGUMENTS[f"{TORCH}.Optimizer({argument})"].sentence


def _argument_rows(asked: Dict[str, Any], variable: FrozenSet[str]) -> List[Row]:
    notes = {"max_grad_norm": "clips by the global norm of all gradients"}
    roles = {"loss_scaling": "constant", **dict.fromkeys(variable, "variable")}
    return [
        Row(name, str(value), "kept", roles.get(name, "compiled in"), notes.get(name, ""))
        for name, value in asked.items()
    ]


def _scheduled_rows(names: Iterable[str], variable: FrozenSet[str]) -> List[Row]:
    kept = "kept", "variable", "sent before the next device call, whose updates all have one value"
    refused = "refused", "constant", "compiled in as constant: the first change is refused"
    return [Row(f"schedule of {name}", "", *(kept if name in variable else refused)) for name in names]


def _dropped_rows(optimizer: torch.optim.Optimizer) -> List[Row]:
    return [
        Row(entry.argument, str(True), "dropped", "", entry.sentence)
        for entry in ARGUMENTS.with_treatment(Treatment.LEFT_OUT)
        if entry.name.startswith(TORCH) and any(group.get(entry.argument) for group in optimizer.param_groups)
    ]


def _receipt(optimizer: torch.optim.Optimizer, kind: OptimizerKind, rows: List[Row]) -> Receipt:
    parameters = sum(len(group["params"]) for group in optimizer.param_groups)
    counted = f"parameter groups: {len(optimizer.param_groups)}, parameters: {parameters}"
    return Receipt(f"{type(optimizer).__name__} -> poptorch.optim.{kind.name} ({counted})", tuple(rows))


def _values(optimizer: torch.optim.Optimizer, name: str) -> str:
    given = [group[name] for group in optimizer.param_groups]
    texts = [f"{float(value):g} (tensor)" if isinstance(value, torch.Tensor) else str(value) for value in given]
    return texts[0] if len(set(texts)) == 1 else " | ".join(texts)
