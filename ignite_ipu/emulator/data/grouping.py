"""Consecutive batches of a caller's own batch sampler, joined to the one that a call of the model takes."""

from __future__ import annotations

import itertools
from typing import Any, Iterator, List

import torch

from ignite_ipu.emulator.values.custom_types import flatten_tensors, replace_tensors


def join_groups(batches: Iterator[Any], size: int, drop_last: bool) -> Iterator[Any]:
    """Yield every `size` consecutive batches as one, concatenated along dimension 0 tensor by tensor.

    Args:
        batches: Structures of tensors, all built alike.
        size: Batches in a group.
        drop_last: Whether an incomplete group at the end is left out instead of joined as it is.
    """
    while True:
        group = list(itertools.islice(batches, size))
        if len(group) < size and (drop_last or not group):
            return
        yield _concatenated(group)


def _concatenated(group: List[Any]) -> Any:
    if len(group) == 1:
        return group[0]
    parts = [flatten_tensors(batch) for batch in group]
    counts = sorted({len(part) for part in parts})
    if len(counts) > 1:
        raise ValueError(f"Batches with {counts} tensors cannot be joined: collate_fn must always build the same.")
    return replace_tensors(group[0], iter([torch.cat(tensors) for tensors in zip(*parts)]))
