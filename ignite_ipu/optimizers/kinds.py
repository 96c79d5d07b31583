"""The optimizers an IPU has: their hyper-parameters, the places of their state, and substitutes for those it lacks."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import weakref
from typing import Any, Collection, Dict, List, Mapping, Sequence, Tuple

import torch

from ignite_ipu.capabilities.optimizers import ON_THE_HOST, TORCH, optimizer_capability
from ignite_ipu.errors import OptimizerError
from ignite_ipu.torch_names.optimizers import STEP_COUNT, STEPPED, marks_of_step

_MOMENTS = ("accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type")


@dataclasses.dataclass(frozen=True)
class OptimizerKind:
    """One optimizer that PopTorch implements.

    Attributes:
        name: Name of the class in `poptorch.optim` and, except for LAMB, in `torch.optim`.
        numbers: Hyper-parameters that are numbers, or pairs of them; each is constant or variable.
        structural: Hyper-parameters that are part of the compiled update and never change.
        settled: Hyper-parameters that select the update. The conversion resolves them; the device does not have them.
        device_arguments: Arguments of PopTorch's class alone.
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

    def slots_of(self, groups: Sequence[Mapping[str, Any]], variable: Collection[str] = ()) -> Dict[str, str]:
        """Return the slots that torch keeps for a parameter group, and the device for every one of all groups."""
        momentum = "momentum" in variable or any(group.get("momentum", 0) for group in groups)
        used = {"momentum_buffer": momentum, "grad_avg": any(group.get("centered", False) for group in groups)}
        return {slot: prefix for slot, prefix in self.slots.items() if used.get(slot, True)}


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
_SUPPORTED = "SGD, Adam, AdamW and RMSprop of torch.optim, and the optimizers of poptorch.optim (LAMB too)"
_LAMB = "PopTorch has it under its own name: use poptorch.optim.LAMB"
# The closest optimizer, used on the user's request, and the hyper-parameters that are lost.
_CLOSEST: Mapping[str, Tuple[Any, str]] = {
    "NAdam": (torch.optim.Adam, "no Nesterov momentum"),
    "RAdam": (torch.optim.Adam, "the first steps are not rectified: let the learning rate rise in them"),
    "Adamax": (torch.optim.Adam, "steps are scaled by mean squares instead of the largest gradient"),
    "SparseAdam": (torch.optim.Adam, "moments of rows that were not used decay, too"),
    "ASGD": (torch.optim.SGD, "the weights are not averaged, and the learning rate does not fall by itself"),
}
_AMSGRAD = "mean squares may fall again"


def kind_of_torch(optimizer: torch.optim.Optimizer) -> OptimizerKind:
    """Return the kind that a torch optimizer is."""
    for torch_class, kind in _TORCH_CLASSES:
        if isinstance(optimizer, torch_class):
            _check_step(optimizer, torch_class)
            return _coupled_or_decoupled(optimizer) if kind is ADAM else kind
    name = type(optimizer).__name__
    reason = _LAMB if "lamb" in name.lower() else optimizer_capability(f"{TORCH}.{name}").sentence
    way_out = ""
    if name in _CLOSEST:
        way_out = f' substitute="closest" trains by {_CLOSEST[name][0].__name__} instead, and lists the differences.'
    raise OptimizerError(
        f"{type(optimizer).__module__}.{name} does not run on an IPU: {reason}. Supported are {_SUPPORTED}.{way_out} "
        f"{ON_THE_HOST}"
    )


def _check_step(optimizer: torch.optim.Optimizer, torch_class: Any) -> None:
    # torch wraps step() of every class it meets, so the functions are compared below their wrappers.
    if inspect.unwrap(type(optimizer).step) is not inspect.unwrap(torch_class.step):
        raise OptimizerError(
            f"{type(optimizer).__qualname__} overrides step() of torch.optim.{torch_class.__name__}, and that Python "
            f"code would never run: the device computes {torch_class.__name__}'s own update. Use "
            f"torch.optim.{torch_class.__name__} itself, or move the additions of step() into the loss or a handler. "
            f"{ON_THE_HOST}"
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


def substituted(optimizer: torch.optim.Optimizer) -> List[Tuple[str, str, str]]:
    """Turn an optimizer into the closest one that an IPU has, for good; its groups keep the entries that both have.

    Returns name, value and a note on the loss for each change; empty if nothing changes.
    """
    changed: List[Tuple[str, str, str]] = []
    name = type(optimizer).__name__
    if type(optimizer).__module__.startswith("torch.optim") and name in _CLOSEST:
        closest, lost = _CLOSEST[name]
        if any(group.get("decoupled_weight_decay") for group in optimizer.param_groups):
            closest = torch.optim.AdamW
        changed.append(("optimizer", f"{name} -> {closest.__name__}", lost))
    elif any(group.get("amsgrad") for group in optimizer.param_groups):
        closest = None
    else:
        return []
    if any(group.get("amsgrad") for group in optimizer.param_groups):
        changed.append(("amsgrad", "True -> False", _AMSGRAD))
    if optimizer.state:
        raise OptimizerError(
            f"The {name} has trained already, and its state is not that of its substitute. Convert it before it trains."
        )
    if closest is not None:
        known: Dict[str, Any] = closest([torch.zeros(1)], lr=1.0).defaults
        # Schedulers keep numbers of their own in groups.
        lost_names = [key for key in optimizer.defaults if key not in known]
        changed += [(key, str(optimizer.defaults[key]), f"{closest.__name__} has no such number") for key in lost_names]
        for group in (optimizer.defaults, *optimizer.param_groups):
            for key in lost_names:
                group.pop(key, None)
            for key, value in known.items():
                group.setdefault(key, value)
        replaced: Any = type(optimizer)
        optimizer.__class__ = closest
        _step_as(optimizer, closest, replaced)
    for group in (optimizer.defaults, *optimizer.param_groups):
        if group.get("amsgrad"):
            group["amsgrad"] = False
    return changed


def _step_as(optimizer: torch.optim.Optimizer, closest: Any, replaced: Any) -> None:
    """Let a step that a scheduler of torch's has wrapped, to see that it was called, be that of the new class."""
    wrapped: Any = optimizer.__dict__.get("step")
    if wrapped is None or inspect.unwrap(wrapped) is not inspect.unwrap(replaced.step):
        return  # The step of a captured loop calls that of the optimizer's class, wrapped by a scheduler or not.
    reference = weakref.ref(optimizer)

    @functools.wraps(closest.step)
    def step(*args: Any, **kwargs: Any) -> Any:
        mine: Any = reference()
        mine.__dict__.update({STEPPED: True, STEP_COUNT: getattr(mine, STEP_COUNT, 0) + 1})
        return closest.step(mine, *args, **kwargs)

    step.__dict__.update({flag: True for flag in marks_of_step() if hasattr(wrapped, flag)})
    optimizer.__dict__["step"] = step
