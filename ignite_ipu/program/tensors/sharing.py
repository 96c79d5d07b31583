"""Search of the process for tensors by the memory that they have."""

from __future__ import annotations

import gc
from itertools import compress
from typing import Callable, Container, List

import torch
from torch import nn

from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

# Attributes of a weight that is on a device would download it.
_layout: Callable[[torch.Tensor], torch.layout] = torch.Tensor.layout.__get__  # type: ignore[attr-defined]
_device: Callable[[torch.Tensor], torch.device] = torch.Tensor.device.__get__


def address_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's memory; 0 if it has none, as undefined tensors and those of vmap."""
    try:
        if _layout(tensor) is not torch.strided or _device(tensor).type != "cpu":
            return 0
        return torch.Tensor.untyped_storage(tensor).data_ptr()
    except RuntimeError:
        return 0


def tensors_at(addresses: Container[int], but: Container[int]) -> List[torch.Tensor]:
    """Return the tensors of the process with memory at some addresses, `but` those with these ids.

    An array of `numpy()` holds such a tensor. The search goes through all objects, which takes tens of milliseconds.
    """
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if kind is torch.Tensor or issubclass(kind, nn.Parameter)}
    # Millions of objects are looked at by C alone.
    tensors = compress(objects, map(kinds.__contains__, map(type, objects)))
    with DisableTorchFunctionSubclass():
        return [each for each in tensors if id(each) not in but and address_of(each) in addresses]
