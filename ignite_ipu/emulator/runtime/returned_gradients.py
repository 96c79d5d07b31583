"""`ReturnedGradients`: gradients of anchored weights, which come back with each micro-batch's results."""

from __future__ import annotations

import itertools
from typing import List, Optional, Sequence, Tuple

import torch

from ignite_ipu.emulator.runtime.executable import Executable


class ReturnedGradients:
    """Gradients of anchored weights.

    They are of one micro-batch and replica alone, in the weight's type, multiplied with the loss scaling.

    Args:
        names: The anchored weights.
        executable: The program on its device.

    Attributes:
        names: The anchored weights.
        latest: Their gradients of the latest micro-batch.
    """

    def __init__(self, names: Sequence[str], executable: Executable) -> None:
        self.names, self._executable = names, executable
        self._places: Optional[List[Optional[int]]] = None  # among the gradients
        self._copied: Optional[List[int]] = None  # those that share memory, or have gaps
        self.latest: Tuple[torch.Tensor, ...] = ()

    def take(self, gradients: Tuple[torch.Tensor, ...], used: Sequence[bool], replica: int, owns: bool) -> None:
        """Choose those of the anchored weights.

        Args:
            gradients: Gradients of all weights that the loss depends on.
            used: Whether the loss depends on each value of a weight.
            replica: The replica.
            owns: Whether nothing writes into the gradients any more, so that they need no copies.
        """
        executable = self._executable
        if self._places is None or executable.grouped:
            remaining, number, places = iter(used), itertools.count(), {}
            for name in executable.trainable:
                own = [next(number) if next(remaining) else None for _ in executable.leaves[name]]
                groups = executable.grouped.get(name)
                places[name] = own[0 if groups is None else groups.group_of(replica)]
            self._places = [places[name] for name in self.names]
        chosen = [
            self._nothing(name) if place is None else gradients[place] for name, place in zip(self.names, self._places)
        ]
        if not owns:
            chosen = [gradient.clone() for gradient in chosen]
        else:
            if self._copied is None:
                memory = [gradient.untyped_storage().data_ptr() for gradient in chosen]
                pairs = enumerate(zip(chosen, memory))
                self._copied = [i for i, (each, own) in pairs if memory.index(own) != i or not each.is_contiguous()]
            for index in self._copied:
                chosen[index] = chosen[index].clone(memory_format=torch.contiguous_format)
        self.latest = tuple(chosen)

    def take_zeros(self) -> None:
        """Have zeros: the loss of the latest micro-batch depends on no weight."""
        self.latest = tuple([self._nothing(name) for name in self.names])

    def _nothing(self, name: str) -> torch.Tensor:
        return torch.zeros_like(self._executable.leaves[name][0], requires_grad=False)
