"""`Accumulation`: the gradients of the micro-batches of an update, added up as the device does."""

from __future__ import annotations

from typing import List, Optional, Sequence, Set, Tuple

import torch

from ignite_ipu.emulator.optim.device import foreach
from ignite_ipu.emulator.runtime.host_tensors import shares_memory
from ignite_ipu.torch_names import lists


class Accumulation:
    """The sum of gradients, or their running mean.

    Args:
        accum_type: The type that gradients are kept in.
        running: Whether they are averaged as they come.
        converts: Whether they come in other types than `accum_type`.
        store: Rounds float32 values to float16.
        grouped: Whether parameters differ between replicas, so that gradients are of other tensors each time.
    """

    def __init__(
        self, accum_type: torch.dtype, running: bool, converts: bool, store: foreach.Store, grouped: bool
    ) -> None:
        self._accum_type, self._running, self._converts = accum_type, running, converts
        self._store, self._grouped = store, grouped
        self._shared: Optional[List[int]] = None  # those that share memory with others
        self._sums: List[torch.Tensor] = []
        self._added = 0

    def add(self, gradients: Tuple[torch.Tensor, ...]) -> None:
        """Add one micro-batch's gradients."""
        if self._converts:
            own = self._accum_type
            gradients = tuple([each if each.dtype is own else self._converted(each) for each in gradients])
        self._added += 1
        if not self._sums:
            self._sums = self._separate(gradients)
        elif gradients and self._accum_type is torch.float16:
            keep, gain = ((self._added - 1) / self._added, 1 / self._added) if self._running else (1.0, 1.0)
            foreach.decay(self._sums, keep, foreach.widened(gradients), gain, self._store)
        elif gradients:
            lists.add_(self._sums, gradients)

    def take(self) -> Tuple[List[torch.Tensor], int]:
        """Return the accumulated gradients, and the factor that makes sums of them; start accumulating afresh."""
        sums, added = self._sums, self._added
        self.clear()
        if self._accum_type is torch.float16:
            sums = [each.float() for each in sums]
        return sums, added if self._running else 1

    def clear(self) -> None:
        """Drop the gradients."""
        self._sums, self._added = [], 0

    def _converted(self, gradient: torch.Tensor) -> torch.Tensor:
        if self._accum_type is not torch.float16:
            return gradient.to(self._accum_type)
        half = torch.empty_like(gradient, dtype=torch.float16)
        self._store([half], [gradient])
        return half

    def _separate(self, gradients: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Return the gradients in memory that may be written to: autograd gives `a` and `b` of `a + b` the same."""
        separate = list(gradients)
        if self._shared is None or self._grouped:
            seen: Set[int] = set()
            self._shared = []
            for index, tensor in enumerate(gradients):
                memory = tensor.untyped_storage().data_ptr()
                if memory in seen or shares_memory(tensor):
                    self._shared.append(index)
                seen.add(memory)
        for index in self._shared:
            separate[index] = gradients[index].clone(memory_format=torch.contiguous_format)
        return separate
