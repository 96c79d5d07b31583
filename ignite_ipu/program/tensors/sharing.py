"""Tensors with memory in common, and a search of the process for those that have some memory."""

from __future__ import annotations

import gc
import operator
from itertools import compress
from typing import Callable, Container, Iterable, Iterator, List, Tuple

import torch

from ignite_ipu.program.tensors.raw import is_lazy
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

# Attributes of a weight that is on a device would download it.
_layout: Callable[[torch.Tensor], torch.layout] = torch.Tensor.layout.__get__  # type: ignore[attr-defined]
_device: Callable[[torch.Tensor], torch.device] = torch.Tensor.device.__get__
_dispatch = operator.attrgetter("__torch_dispatch__")
_NONE = _dispatch(torch.Tensor)


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
    # Classes that PyTorch dispatches to have no memory of their own.
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, torch.Tensor) and _dispatch(kind) == _NONE}
    # Millions of objects are looked at by C alone.
    tensors = compress(objects, map(kinds.__contains__, map(type, objects)))
    with DisableTorchFunctionSubclass():
        # Of most tensors one question tells that they are elsewhere.
        found = [each for each in tensors if _begins(each) in addresses]
        return [each for each in found if id(each) not in but and address_of(each) in addresses]


def _begins(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's memory on any device; 0 if it has none."""
    try:
        return torch.Tensor.untyped_storage(tensor).data_ptr()
    except RuntimeError:
        return 0


def overlapping(named: Iterable[Tuple[str, torch.Tensor]]) -> Iterator[Tuple[str, str]]:
    """Yield the names of tensors that have elements in common, by pairs; the one whose memory begins later is first.

    A tensor under several names is one tensor.
    """
    places: List[Tuple[int, int, str, torch.Tensor]] = []
    # Deferred tensors have no memory, and would be computed by a question about it.
    with DisableTorchFunctionSubclass():
        for name, tensor in {id(tensor): (name, tensor) for name, tensor in named}.values():
            if is_lazy(tensor) or not address_of(tensor) or not torch.Tensor.numel(tensor):
                continue
            memory = torch.Tensor.detach(tensor)
            start = memory.data_ptr()
            places.append((start, start + _bytes_between(memory), name, memory))
    places.sort(key=lambda place: place[:3])
    before: List[Tuple[int, int, str, torch.Tensor]] = []
    for place in places:
        before = [other for other in before if place[0] < other[1]]
        for other in before:
            if _have_common_elements(place[3], other[3]):
                yield place[2], other[2]
        before.append(place)


def _bytes_between(memory: torch.Tensor) -> int:
    """Return the number of bytes from the first element of a tensor to the end of its last one."""
    if memory.is_contiguous():
        return memory.numel() * memory.element_size()
    steps = sum((size - 1) * stride for size, stride in zip(memory.shape, memory.stride()))
    return (steps + 1) * memory.element_size()


def _have_common_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether tensors that lie across each other have bytes in common; columns of a table have none."""
    if all(each.numel() * each.element_size() == _bytes_between(each) for each in (one, other)):
        return True
    start = min(one.data_ptr(), other.data_ptr())
    end = max(each.data_ptr() + _bytes_between(each) for each in (one, other))
    used = torch.zeros(end - start, dtype=torch.bool)

    def bytes_of(each: torch.Tensor) -> torch.Tensor:
        size = each.element_size()
        return used.as_strided(
            (*each.shape, size), (*[stride * size for stride in each.stride()], 1), each.data_ptr() - start
        )

    bytes_of(one).fill_(True)
    return bool(bytes_of(other).any())
