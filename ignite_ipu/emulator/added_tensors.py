"""Parameters and buffers that forward registers while it is traced: a mask made in the first call, for example.

They are values of the graph, and would stay in the model as tensors that nobody can read, save or trace again.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple

import torch
from torch import fx, nn

from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.traced_tensor import IpuTensor


class AddedTensor(NamedTuple):
    """One of them, and where it was registered."""

    name: str
    slot: str
    tensors: Dict[str, Any]
    value: IpuTensor


def taken_off(model: nn.Module) -> List[AddedTensor]:
    """Remove the traced tensors that are registered in the model, and return them."""
    added: List[AddedTensor] = []
    for prefix, module in model.named_modules():
        for kind in ("_parameters", "_buffers"):
            tensors = module.__dict__[kind]
            for slot in [slot for slot, value in tensors.items() if isinstance(value, IpuTensor)]:
                name = f"{prefix}.{slot}" if prefix else slot
                added.append(AddedTensor(name, slot, tensors, tensors.pop(slot)))
    return added


def put_back(added: List[AddedTensor], known: Callable[[], Mapping[fx.Node, torch.Tensor]]) -> None:
    """Register with their values, on the host, those that have one value for good, and warn of the others.

    Args:
        known: Returns the values that depend on constants and unchanging buffers alone.
    """
    values = known() if added else {}
    for each in added:
        value = values.get(each.value.node)
        if value is None:
            logger.warning(
                "%s was registered by forward while it was traced, and its value is computed on the IPU: the model is "
                "left without it. Register it in the constructor, and change it in place.",
                each.name,
            )
        else:
            each.tensors[each.slot] = value.clone()
