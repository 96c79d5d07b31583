"""The slots in shared memory through which a worker process hands over its items."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import List, Sequence, Tuple

import torch

from ignite_ipu.emulator.data.worker.channel import anonymous_file

_ALIGNMENT = 64


@dataclass(frozen=True)
class TensorSpec:
    """Shape and type that one tensor has in every item."""

    shape: Tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Bytes it takes."""
        elements = 1
        for length in self.shape:
            elements *= length
        return elements * torch.empty((), dtype=self.dtype).element_size()


class Ring:
    """`slots` times the tensors of one item, over memory that two processes map.

    The memory belongs to no name and to no owner: it goes when both processes have let go of the tensors over it.

    Args:
        specs: The tensors of an item.
        slots: How many items there is room for.
        descriptor: The anonymous file that holds them. The caller closes it.
    """

    def __init__(self, specs: Sequence[TensorSpec], slots: int, descriptor: int) -> None:
        # One byte more, since nothing of length zero can be mapped.
        memory = mmap.mmap(descriptor, slots * _slot_size(specs) + 1)
        offset = 0
        self._poison = [poison_value(spec.dtype) for spec in specs]
        self._slots: List[List[torch.Tensor]] = []
        for _ in range(slots):
            tensors = []
            for spec in specs:
                tensors.append(_tensor(memory, offset, spec))
                offset += _aligned(spec.size)
            self._slots.append(tensors)

    @staticmethod
    def allocate(specs: Sequence[TensorSpec], slots: int) -> int:
        """Return the descriptor of a new anonymous file for `slots` items.

        Raises:
            OSError: There is not enough memory for them.
        """
        return anonymous_file(slots * _slot_size(specs) + 1)

    def __len__(self) -> int:
        return len(self._slots)

    def slot(self, index: int) -> List[torch.Tensor]:
        """Return the tensors of one slot."""
        return self._slots[index]

    def poison(self, index: int) -> None:
        """Fill one slot with values that no computation takes for data: NaN, or the extreme of an integer type."""
        for tensor, value in zip(self._slots[index], self._poison):
            tensor.fill_(value)


def poison_value(dtype: torch.dtype) -> float:
    """Return NaN for floating point and complex types, else the value farthest from use as an index or a count."""
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    if dtype == torch.bool:
        return True
    info = torch.iinfo(dtype)
    return info.min if info.min < 0 else info.max


def _slot_size(specs: Sequence[TensorSpec]) -> int:
    return sum(_aligned(spec.size) for spec in specs)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _tensor(memory: mmap.mmap, offset: int, spec: TensorSpec) -> torch.Tensor:
    if spec.size == 0:
        return torch.empty(spec.shape, dtype=spec.dtype)
    # A storage of its own for each tensor: saving one must not save the whole ring.
    raw = torch.frombuffer(memory, dtype=torch.uint8, count=spec.size, offset=offset)
    return raw.view(spec.dtype).view(spec.shape)
