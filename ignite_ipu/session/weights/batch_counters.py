"""Counters of the batches that layers have seen, `num_batches_tracked`, which no device advances.

They are integers, and so constants of a program, from which nothing is computed.
"""

from __future__ import annotations

from typing import Sequence, Tuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from ignite_ipu.program.tensors.raw import plain

__all__ = ["BatchCounters", "Counted", "counted_by_norms"]

Counted = Sequence[Tuple[torch.Tensor, int]]
"""Counters, and by how much one forward advances each."""


class BatchCounters:
    """The host's counters, advanced by the calls since the last time when somebody gets the weights."""

    def __init__(self) -> None:
        self._counted: Counted = ()
        self._each = self._calls = 0

    def follow(self, counted: Counted, each: int) -> None:
        """Count the calls of a program from now on.

        Args:
            each: Forwards that one replica makes in a call. Replicas have counters of their own, all alike.
        """
        self.advance()
        self._counted, self._each = counted, each

    def note_call(self) -> None:
        """Count a call."""
        self._calls += 1

    def forget(self) -> None:
        """Leave out the calls since the last time, whose weights are lost."""
        self._calls = 0

    def advance(self) -> None:
        """Advance the counters."""
        calls, self._calls = self._calls, 0
        if calls:
            for counter, count in self._counted:
                plain(counter).numpy()[...] += count * self._each * calls  # PyTorch takes it for no edit


def counted_by_norms(module: nn.Module) -> Counted:
    """Return what one forward counts in which every normalisation that is in training mode is called once."""
    norms = [each for each in module.modules() if isinstance(each, _NormBase) and each.training]
    return [(each.num_batches_tracked, 1) for each in norms if each.num_batches_tracked is not None]
