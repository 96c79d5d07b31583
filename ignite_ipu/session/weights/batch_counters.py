"""Counters of the batches that normalisations have seen, which no device advances."""

from __future__ import annotations

from typing import Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.torch_names.modules import NormWithStatistics, all_modules

Counted = Sequence[Tuple[torch.Tensor, int]]
"""Counters of batches, and by how much one forward advances each."""


class BatchCounters:
    """Counters of the batches that layers have seen, `num_batches_tracked`, which no device advances.

    They are integers, and so constants of a program, from which nothing is computed. The host's are advanced by the
    calls since the last time when the weights are read.

    Attributes:
        counted: The counters, and by how much one forward advances each.
        calls: Calls since the last time.
    """

    def __init__(self) -> None:
        self.counted: Counted = ()
        self._each = self.calls = 0

    def follow(self, counted: Counted, each: int) -> None:
        """Count the calls of a program from now on, in which one replica makes `each` forwards.

        Replicas have counters of their own, all alike.
        """
        self.advance()
        self.counted, self._each = counted, each

    def forget(self) -> None:
        """Leave out the calls since the last time, whose weights are lost."""
        self.calls = 0

    def advance(self) -> None:
        calls, self.calls = self.calls, 0
        if calls:
            for counter, count in self.counted:
                plain(counter).numpy()[...] += count * self._each * calls  # PyTorch takes it for no edit


def counted_by_norms(module: nn.Module) -> Counted:
    """Return the counts of one forward that calls every normalisation in training mode once."""
    norms = [each for each in all_modules(module) if isinstance(each, NormWithStatistics) and each.training]
    return [(each.num_batches_tracked, 1) for each in norms if each.num_batches_tracked is not None]
