"""The state of an optimizer in torch's structure and in PopTorch's, converted both ways without loss.

torch keeps `{parameter number: {"momentum_buffer": tensor, ...}}`; PopTorch keeps `{"Accl1___<parameter name>": tensor,
...}`, with the names that parameters have in the compiled program. Both mean the same tensors: the velocity and the
moments of the update formulas. Which is which stands in `kinds.py`.
"""

from __future__ import annotations

import copy
import functools
import itertools
from types import MappingProxyType
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Union

import torch
from torch import nn

from ignite_ipu import backend
from ignite_ipu.errors import OptimizerError
from ignite_ipu.optimizers.kinds import RMSPROP, OptimizerKind, kind_of_device, kind_of_torch

STEP = "Step"
# Types of hyper-parameters that cannot be written into.
_FIXED = (int, float, str, type(None))


def state_to_torch(
    device_state: Mapping[str, torch.Tensor],
    names: Sequence[str],
    types: Sequence[torch.dtype],
    param_groups: Sequence[Mapping[str, Any]],
    kind: OptimizerKind,
    *,
    steps: float = 0.0,
    behind: Mapping[int, float] = MappingProxyType({}),
    loss_scaling: float = 1.0,
    shares: bool = False,
) -> Dict[int, Dict[str, Any]]:
    """Return torch's state by parameter number for a device's, in the types that the installed torch keeps it in.

    Parameters that the device keeps no state for (it never updated them) have none.

    Args:
        device_state: The entry `ipu_state` of PopTorch's optimizer.
        names: Names of the parameters on the device, in the order of torch's numbers.
        types: Types of the parameters in that order. State is in float32, or in a wider type of its parameter.
        param_groups: Hyper-parameters of each group, with the numbers of its parameters under `params`.
        steps: Updates made so far, for optimizers whose steps only torch counts.
        behind: How many fewer were of a parameter, by its number.
        loss_scaling: The device's loss scaling, which SGD's velocity carries.
        shares: Whether the tensors may share the memory of `device_state`.
    """
    state: Dict[int, Dict[str, Any]] = {}
    for group in param_groups:
        slots = kind.slots_of([group])
        for number in group["params"]:
            name = names[number]
            found = {slot: device_state.get(_entry(prefix, name)) for slot, prefix in slots.items()}
            present: Dict[str, Any] = {
                slot: _unscaled(tensor, loss_scaling if slot in kind.scaled else 1.0, types[number], shares)
                for slot, tensor in found.items()
                if tensor is not None
            }
            if not present:
                continue
            if kind.counts_steps:
                counted = device_state.get(_entry(STEP, name)) if kind.device_counts_steps else None
                step = float(counted.reshape(-1)[0]) if counted is not None else float(steps - behind.get(number, 0))
                if counted is not None and not step:
                    continue
                present = {"step": _step_in_torch(step, kind), **present}
            state[number] = present
    return state


def _unscaled(tensor: torch.Tensor, scaling: float, kind: torch.dtype, shares: bool) -> torch.Tensor:
    wanted = torch.promote_types(kind, torch.float32)
    if shares and scaling == 1.0:
        return tensor.to(wanted)
    own = tensor.detach().to(wanted, copy=True)
    return own if scaling == 1.0 else own.div_(scaling)


def state_from_torch(
    state: Mapping[int, Mapping[str, Any]],
    names: Sequence[str],
    shapes: Sequence[Sequence[int]],
    param_groups: Sequence[Mapping[str, Any]],
    kind: OptimizerKind,
    *,
    variable: Collection[str] = (),
    known: Optional[Mapping[str, torch.Tensor]] = None,
    loss_scaling: float = 1.0,
) -> Dict[str, torch.Tensor]:
    """Return the device's state, by PopTorch's names, for torch's.

    Args:
        state: torch's state by parameter number. Missing entries start at zero, as in torch.
        shapes: Shapes of the parameters, in the order of `names`.
        variable: Hyper-parameters that are variable on the device: their state exists even while they are zero.
        known: The current state of the device, if known: only its entries are made, in their types.
    """
    result: Dict[str, torch.Tensor] = {}
    slots = [*kind.slots_of(param_groups, variable).items()]
    for number in (number for group in param_groups for number in group["params"]):
        name, entries = names[number], state.get(number, {})
        _check_entries(entries, name, kind)
        for slot, prefix in [*slots, ("step", STEP)] if kind.device_counts_steps else slots:
            entry, value = _entry(prefix, name), entries.get(slot)
            if known is None:
                like = torch.empty(() if prefix == STEP else tuple(shapes[number]), dtype=torch.float32)
            elif entry in known:
                like = known[entry]
            else:
                continue
            if value is not None and slot in kind.scaled:
                value = value * loss_scaling
            result[entry] = torch.zeros_like(like) if value is None else _shaped(value, like, entry, slot)
    return result


def _shaped(value: Any, like: torch.Tensor, entry: str, slot: str) -> torch.Tensor:
    tensor = torch.as_tensor(value).detach().to(device="cpu", dtype=like.dtype)
    if tensor.numel() != like.numel() or (tensor.dim() and tensor.shape != like.shape):
        raise OptimizerError(
            f"The state {slot!r} for {entry} has shape {tuple(tensor.shape)}, but the parameter has "
            f"{tuple(like.shape)}. The state was saved for another model."
        )
    return tensor.reshape(like.shape).clone()


def _check_entries(entries: Mapping[str, Any], name: str, kind: OptimizerKind) -> None:
    known = {*kind.slots, "step"}
    strange: List[str] = [slot for slot, value in entries.items() if slot not in known and value is not None]
    if strange:
        raise OptimizerError(
            f"The state of {name} has entries {strange}, which {kind.name} does not have ({sorted(known)}). The state "
            "was saved by another kind of optimizer."
        )


def _step_in_torch(step: float, kind: OptimizerKind) -> Union[int, torch.Tensor]:
    if kind is RMSPROP and _rmsprop_counts_in_python():
        return int(step)
    return torch.tensor(step, dtype=torch.float32)


@functools.lru_cache(maxsize=None)
def _rmsprop_counts_in_python() -> bool:
    """Return whether RMSprop counts its steps in a Python number, as PyTorch 2.0 does, and not in a tensor."""
    optimizer = torch.optim.RMSprop([nn.Parameter(torch.zeros(1))])
    # Where the count is a tensor, loading makes one of the number in an old checkpoint.
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: {"step": 0}}})
    (entries,) = optimizer.state.values()
    return not isinstance(entries["step"], torch.Tensor)


def _entry(prefix: str, name: str) -> str:
    return f"{prefix}___{name}"


_LOSS_SCALING = "lossScaling_FLOAT"


def convert_optimizer_state(
    state_dict: Mapping[str, Any], optimizer: torch.optim.Optimizer, module: nn.Module, *, steps: int = 0
) -> Dict[str, Any]:
    """Return an optimizer's state dictionary in the other form: PopTorch's for torch's, and torch's for PopTorch's.

    This library's trainers convert by themselves. This is for optimizers of `poptorch.optim` in loops of your own::

        optimizer.load_state_dict(convert_optimizer_state(torch.load("native.pt"), optimizer, wrapped_module))

    Args:
        state_dict: The result of `state_dict()` of a torch optimizer, or of one of `poptorch.optim`.
        optimizer: An optimizer of the same kind over the module's parameters, in the same groups and order. It is only
            read, and may be of either library.
        module: The module that was or will be handed to `poptorch.trainingModel`. State is named for its parameters.
        steps: Weight updates made so far, where PopTorch does not count them: for RMSprop's torch form.

    Raises:
        OptimizerError: The state belongs to other groups, to another kind of optimizer, or to another module.
    """
    on_device = isinstance(optimizer, backend.poptorch().optim.Optimizer)
    kind = kind_of_device(optimizer) if on_device else kind_of_torch(optimizer)
    names_of = {id(parameter): name for name, parameter in module.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(id(parameter) not in names_of for parameter in parameters):
        raise OptimizerError(
            "The optimizer holds parameters that are not the module's. Pass the module that PopTorch wraps, with the "
            "loss in it, and the optimizer over its parameters."
        )
    names = [names_of[id(parameter)] for parameter in parameters]
    groups = [dict(group) for group in state_dict["param_groups"]]
    sizes = [len(group["params"]) for group in groups]
    expected = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != expected:
        raise OptimizerError(f"The state has groups of {sizes} parameters, but the optimizer has {expected}.")
    record = state_dict if "ipu_state" in state_dict else optimizer.get_state_dict() if on_device else {}  # type: ignore[attr-defined]
    _refuse_other_names(record.get("ipu_state") or {}, names_of.values(), type(module).__qualname__)
    numbered = numbered_groups(groups, sizes)
    if "ipu_state" in state_dict:
        found: Dict[int, Dict[str, Any]] = {}
        if state_dict["ipu_state"] is not None:  # as it is where the device was never used
            told = (state_dict.get("ipu_param") or {}).get(_LOSS_SCALING, state_dict.get("loss_scaling", 1.0))
            own: Dict[str, Any] = {"steps": steps, "loss_scaling": float(told)}
            types = [parameter.dtype for parameter in parameters]
            found = state_to_torch(state_dict["ipu_state"], names, types, numbered, kind, **own)
        return {"state": found, "param_groups": numbered}
    shapes = [tuple(parameter.shape) for parameter in parameters]
    loss_scaling = float(getattr(optimizer, "loss_scaling", 1.0))
    numbers = {old: new for new, old in enumerate(number for group in groups for number in group["params"])}
    state = {numbers[old]: entries for old, entries in state_dict["state"].items()}
    converted = state_from_torch(state, names, shapes, numbered, kind, loss_scaling=loss_scaling)
    return {"ipu_state": converted, "ipu_param": {}, "state": {}, "param_groups": groups}


def _refuse_other_names(device_state: Mapping[str, Any], names: Collection[str], module: str) -> None:
    """Refuse a device's state that is named for the parameters of a module around or inside the one that is given."""
    others = [entry for entry in device_state if "___" in entry and entry.split("___", 1)[1] not in names]
    if others:
        raise OptimizerError(
            f"The state on the device has {others[0]}, but the {module} that was passed has parameters named "
            f"{', '.join(list(names)[:2])}, ..., so its state would be ignored. Pass the module that was handed to "
            "poptorch.trainingModel, with the loss in it."
        )


def numbered_groups(groups: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> List[Dict[str, Any]]:
    """Return copies of parameter groups of these sizes with numbers for parameters, as torch writes them."""
    starts = [0, *itertools.accumulate(sizes)]
    return [
        {
            **{name: _own(value) for name, value in group.items() if name != "params"},
            "params": [*range(start, start + size)],
        }
        for group, start, size in zip(groups, starts, sizes)
    ]


def _own(value: Any) -> Any:
    return value if isinstance(value, _FIXED) else copy.deepcopy(value)
