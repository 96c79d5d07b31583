"""The state of an optimizer in torch's structure and in PopTorch's, converted both ways without loss.

torch keeps `{parameter number: {"momentum_buffer": tensor, ...}}`; PopTorch keeps `{"Accl1___<parameter name>": tensor,
...}`, with the names that parameters have in the compiled program. Both mean the same tensors: the velocity and the
moments of the update formulas. Which is which stands in `kinds.py`.
"""

from __future__ import annotations

import functools
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Union

import torch
from torch import nn

from ignite_ipu.optimizers.errors import OptimizerError
from ignite_ipu.optimizers.kinds import RMSPROP, Kind

__all__ = ["STEP", "state_from_torch", "state_to_torch"]

STEP = "Step"


def state_to_torch(
    device_state: Mapping[str, torch.Tensor],
    names: Sequence[str],
    param_groups: Sequence[Mapping[str, Any]],
    kind: Kind,
    *,
    steps: float = 0.0,
    loss_scaling: float = 1.0,
) -> Dict[int, Dict[str, Any]]:
    """Return torch's state for a device's, in the types that the installed torch keeps it in.

    Args:
        device_state: What PopTorch's optimizer has under `ipu_state`.
        names: Names of the parameters on the device, in the order of torch's numbers.
        param_groups: Hyper-parameters of each group, with the numbers of its parameters under `params`.
        kind: Which optimizer it is.
        steps: Updates made so far, for optimizers whose steps only torch counts.
        loss_scaling: The device's loss scaling, which SGD's velocity carries.

    Returns:
        State by parameter number; parameters the device keeps no state for (it never updated them) have none.
    """
    state: Dict[int, Dict[str, Any]] = {}
    for group in param_groups:
        slots = kind.slots_in_torch(group)
        for number in group["params"]:
            name = names[number]
            found = {slot: device_state.get(_entry(prefix, name)) for slot, prefix in slots.items()}
            present: Dict[str, Any] = {
                slot: _copied(tensor, loss_scaling if slot in kind.scaled else 1.0)
                for slot, tensor in found.items()
                if tensor is not None
            }
            if not present:
                continue
            if kind.counts_steps:
                counted = device_state.get(_entry(STEP, name)) if kind.device_counts_steps else None
                step = float(counted.reshape(-1)[0]) if counted is not None else float(steps)
                present = {"step": _step_in_torch(step, kind), **present}
            state[number] = present
    return state


def state_from_torch(
    state: Mapping[int, Mapping[str, Any]],
    names: Sequence[str],
    shapes: Sequence[Sequence[int]],
    param_groups: Sequence[Mapping[str, Any]],
    kind: Kind,
    *,
    variable: Collection[str] = (),
    known: Optional[Mapping[str, torch.Tensor]] = None,
    loss_scaling: float = 1.0,
) -> Dict[str, torch.Tensor]:
    """Return the device's state for torch's.

    Args:
        state: torch's state by parameter number. What is missing starts at zero, as it does in torch.
        names: Names of the parameters on the device, in the order of torch's numbers.
        shapes: Shapes of the parameters, in the same order.
        param_groups: Hyper-parameters of each group, with the numbers of its parameters under `params`.
        kind: Which optimizer it is.
        variable: Hyper-parameters that are variable on the device: their state exists even while they are zero.
        known: What the device holds now, if that is known: only its entries are made, in their types.
        loss_scaling: The device's loss scaling, which SGD's velocity carries.

    Returns:
        Tensors by the names PopTorch gives them.

    Raises:
        OptimizerError: A tensor has another shape than its parameter, or the state is of another kind of optimizer.
    """
    result: Dict[str, torch.Tensor] = {}
    for group in param_groups:
        slots = kind.slots_on_device(param_groups, variable)
        for number in group["params"]:
            entries = state.get(number, {})
            _check_entries(entries, names[number], kind)
            for slot, prefix in slots.items():
                value = entries.get(slot)
                if value is not None and slot in kind.scaled:
                    value = value * loss_scaling
                _put(result, _entry(prefix, names[number]), value, shapes[number], known, slot)
            if kind.device_counts_steps:
                _put(result, _entry(STEP, names[number]), entries.get("step"), (), known, "step")
    return result


def _put(
    result: Dict[str, torch.Tensor],
    entry: str,
    value: Any,
    shape: Sequence[int],
    known: Optional[Mapping[str, torch.Tensor]],
    slot: str,
) -> None:
    model = known.get(entry) if known is not None else None
    if known is not None and model is None:
        return
    dtype = model.dtype if model is not None else torch.float32
    wanted = model.shape if model is not None else torch.Size(shape)
    if value is None:
        result[entry] = torch.zeros(wanted, dtype=dtype)
        return
    tensor = torch.as_tensor(value).detach().to(device="cpu", dtype=dtype)
    if tensor.numel() != wanted.numel() or (tensor.dim() and tensor.shape != wanted):
        raise OptimizerError(
            f"The state {slot!r} for {entry} has shape {tuple(tensor.shape)}, but the parameter has {tuple(wanted)}. "
            "The state was saved for another model."
        )
    result[entry] = tensor.reshape(wanted).clone()


def _check_entries(entries: Mapping[str, Any], name: str, kind: Kind) -> None:
    known = {*kind.slots, "step"}
    strange: List[str] = [slot for slot, value in entries.items() if slot not in known and value is not None]
    if strange:
        raise OptimizerError(
            f"The state of {name} has entries {strange}, which {kind.name} does not have ({sorted(known)}). The state "
            "was saved by another kind of optimizer."
        )


def _step_in_torch(step: float, kind: Kind) -> Union[int, torch.Tensor]:
    if kind is RMSPROP and _rmsprop_counts_in_python():
        return int(step)
    return torch.tensor(step, dtype=torch.float32)


@functools.lru_cache(maxsize=None)
def _rmsprop_counts_in_python() -> bool:
    """Tell whether RMSprop counts its steps in a Python number, as PyTorch 2.0 does, and not in a tensor."""
    optimizer = torch.optim.RMSprop([nn.Parameter(torch.zeros(1))])
    # Where the count is a tensor, loading makes one of the number in an old checkpoint.
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: {"step": 0}}})
    (entries,) = optimizer.state.values()
    return not isinstance(entries["step"], torch.Tensor)


def _copied(tensor: torch.Tensor, scaling: float) -> torch.Tensor:
    copied = tensor.detach().to(torch.float32, copy=True)
    return copied if scaling == 1.0 else copied.div_(scaling)


def _entry(prefix: str, name: str) -> str:
    return f"{prefix}___{name}"
