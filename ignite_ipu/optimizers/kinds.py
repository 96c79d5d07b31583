"""The optimizers an IPU has: their hyper-parameters, what of torch's they lack, and where their state lives."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Collection, Dict, Mapping, Sequence, Tuple

import torch

from ignite_ipu.errors import OptimizerError
from ignite_ipu.optimizers.substitution import closest_to

__all__ = ["ADAM", "ADAMW", "KINDS", "LAMB", "RMSPROP", "SGD", "OptimizerKind", "kind_of_device", "kind_of_torch"]

_MOMENTS = ("accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type")


@dataclasses.dataclass(frozen=True)
class OptimizerKind:
    """One optimizer that PopTorch implements.

    Attributes:
        name: Name of the class in `poptorch.optim` and, except for LAMB, in `torch.optim`.
        numbers: Hyper-parameters that are numbers, or pairs of them; each is constant or variable.
        structural: Hyper-parameters that are part of the compiled update and never change.
        settled: Hyper-parameters that decide which update it is, so that the conversion settles them; the device does
            not know them.
        device_arguments: What only PopTorch's class takes.
        slots: Name of a state tensor in torch -> prefix of its name on the device, in torch's order. A slot that an
            optimizer's hyper-parameters leave unused exists on neither side.
        counts_steps: Whether torch keeps a step count in the state.
        device_counts_steps: Whether the device does.
        scaled: Slots that the device keeps multiplied by the loss scaling.
    """

    name: str
    numbers: Tuple[str, ...]
    structural: Tuple[str, ...]
    settled: Tuple[str, ...]
    device_arguments: Tuple[str, ...]
    slots: Mapping[str, str]
    counts_steps: bool
    device_counts_steps: bool
    scaled: Tuple[str, ...] = ()

    @property
    def deciding(self) -> Tuple[str, ...]:
        """Every hyper-parameter that decides what an update is."""
        return (*self.numbers, *self.structural, *self.settled)

    def slots_in_torch(self, group: Mapping[str, Any]) -> Dict[str, str]:
        """Return the slots that torch keeps for a parameter group with these hyper-parameters."""
        return self._slots(bool(group.get("momentum", 0)), bool(group.get("centered", False)))

    def slots_on_device(self, groups: Sequence[Mapping[str, Any]], variable: Collection[str]) -> Dict[str, str]:
        """Return the slots that the device keeps for every parameter of an optimizer with these groups."""
        momentum = "momentum" in variable or any(group.get("momentum", 0) for group in groups)
        return self._slots(momentum, any(group.get("centered", False) for group in groups))

    def _slots(self, momentum: bool, centered: bool) -> Dict[str, str]:
        unused = {slot for slot, used in (("momentum_buffer", momentum), ("grad_avg", centered)) if not used}
        return {slot: prefix for slot, prefix in self.slots.items() if slot not in unused}


SGD = OptimizerKind(
    name="SGD",
    numbers=("lr", "momentum", "dampening", "weight_decay"),
    structural=("nesterov",),
    settled=("maximize",),
    device_arguments=("loss_scaling", "max_grad_norm", "accum_type", "velocity_accum_type"),
    slots={"momentum_buffer": "Accl1"},
    counts_steps=False,
    device_counts_steps=False,
    scaled=("momentum_buffer",),
)
ADAM = OptimizerKind(
    name="Adam",
    numbers=("lr", "betas", "eps", "weight_decay"),
    structural=(),
    settled=("amsgrad", "maximize", "decoupled_weight_decay"),
    device_arguments=("loss_scaling", "max_grad_norm", *_MOMENTS),
    slots={"exp_avg": "Accl1", "exp_avg_sq": "Accl2"},
    counts_steps=True,
    device_counts_steps=True,
)
ADAMW = dataclasses.replace(ADAM, name="AdamW")
LAMB = dataclasses.replace(
    ADAM,
    name="LAMB",
    numbers=(*ADAM.numbers, "max_weight_norm"),
    settled=("bias_correction",),
    device_arguments=("loss_scaling", *_MOMENTS),
)
RMSPROP = OptimizerKind(
    name="RMSprop",
    numbers=("lr", "alpha", "eps", "weight_decay", "momentum"),
    structural=("centered",),
    settled=("maximize",),
    device_arguments=("loss_scaling", *_MOMENTS),
    slots={"square_avg": "Accl1", "momentum_buffer": "Accl3", "grad_avg": "Accl2"},
    counts_steps=True,
    device_counts_steps=False,
)
KINDS = {kind.name: kind for kind in (SGD, ADAM, ADAMW, RMSPROP, LAMB)}

# AdamW first: it is a subclass of Adam in recent versions of torch.
_TORCH_CLASSES = (
    (torch.optim.AdamW, ADAMW),
    (torch.optim.Adam, ADAM),
    (torch.optim.SGD, SGD),
    (torch.optim.RMSprop, RMSPROP),
)
_SUPPORTED = "SGD, Adam, AdamW and RMSprop of torch.optim, and what poptorch.optim offers (LAMB too)"
_REASONS = {
    "LBFGS": "it evaluates the loss several times in a step, which a compiled step cannot",
    "SparseAdam": "gradients are dense on an IPU; torch.optim.Adam computes the same from dense gradients, except that "
    "it also decays the moments of rows that were not used",
    "Lamb": "PopTorch has it under its own name: use poptorch.optim.LAMB",
}


def kind_of_torch(optimizer: torch.optim.Optimizer) -> OptimizerKind:
    """Return the kind that a torch optimizer is."""
    for torch_class, kind in _TORCH_CLASSES:
        if isinstance(optimizer, torch_class):
            _check_step(optimizer, torch_class)
            return _coupled_or_decoupled(optimizer) if kind is ADAM else kind
    name = type(optimizer).__name__
    reason = _REASONS.get("Lamb" if "lamb" in name.lower() else name, "PopTorch has no such update")
    closest = closest_to(name)
    way_out = f' substitute="closest" trains by {closest} instead, and says what that changes.' if closest else ""
    raise OptimizerError(
        f"{type(optimizer).__module__}.{name} does not run on an IPU: {reason}. Supported are {_SUPPORTED}.{way_out}"
    )


def _check_step(optimizer: torch.optim.Optimizer, torch_class: Any) -> None:
    # torch wraps step() of every class it meets, so the functions are compared below their wrappers.
    if inspect.unwrap(type(optimizer).step) is not inspect.unwrap(torch_class.step):
        raise OptimizerError(
            f"{type(optimizer).__qualname__} overrides step() of torch.optim.{torch_class.__name__}, and that Python "
            f"code would never run: the device computes {torch_class.__name__}'s own update. Use "
            f"torch.optim.{torch_class.__name__} itself, or move what step() adds into the loss or an event handler."
        )


def _coupled_or_decoupled(optimizer: torch.optim.Optimizer) -> OptimizerKind:
    flags = {bool(group.get("decoupled_weight_decay", False)) for group in optimizer.param_groups}
    if len(flags) > 1:
        raise OptimizerError(
            "Some parameter groups of Adam have decoupled_weight_decay and others not; on an IPU all groups share one "
            "update. Use one kind for all (weight_decay=0 makes both the same)."
        )
    return ADAMW if flags == {True} else ADAM


def kind_of_device(optimizer: Any) -> OptimizerKind:
    """Return the kind of one of PopTorch's own optimizers, by the name of its class or of the class it derives from."""
    for base in type(optimizer).__mro__:
        if base.__name__ in KINDS:
            return KINDS[base.__name__]
    raise OptimizerError(
        f"{type(optimizer).__qualname__} derives from no optimizer of poptorch.optim, so the device has no update for "
        "it."
    )
