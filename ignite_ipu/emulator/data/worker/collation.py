"""Batches of a torch loader put together with as little work as their data set allows.

A loader without processes of its own, in the worker of an accessor, stacks its samples straight into the slot that
they are handed over in. Rows of a `TensorDataset` are not taken one by one to be stacked again, but selected all at
once. The batches are those that `default_collate` would make; what is not known here is left to it.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

Slot = Sequence[torch.Tensor]


class Rows:
    """Rows of some tensors, not taken yet.

    Args:
        dataset: What the rows are from.
        indices: Which.
    """

    def __init__(self, dataset: TensorDataset, indices: List[int]) -> None:
        self._dataset = dataset
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def collated(self, slot: Optional[Slot]) -> List[torch.Tensor]:
        """Return the rows of each tensor, in `slot` where they fit."""
        tensors, indices = self._dataset.tensors, self._indices
        lengths = [len(tensor) for tensor in tensors]
        is_usual = indices and all(type(index) is int for index in indices) and min(indices) >= 0
        if not is_usual or max(indices) >= min(lengths):
            # The data set says what it makes of such an index.
            collated: List[torch.Tensor] = default_collate([self._dataset[index] for index in indices])
            return collated
        chosen = torch.tensor(indices)
        return [
            torch.index_select(
                tensor, 0, chosen, out=_target(slot, place, len(indices), tensor.shape[1:], tensor.dtype)
            )
            for place, tensor in enumerate(tensors)
        ]


class RowsOf:
    """The `__getitems__` of a `TensorDataset`."""

    def __init__(self, dataset: TensorDataset) -> None:
        self._dataset = dataset

    def __call__(self, indices: List[int]) -> Rows:
        return Rows(self._dataset, indices)


class Collation:
    """The `default_collate` of a loader in a worker.

    Args:
        free_slot: Returns the slot to fill next, when it is free; None while there is none, or if there never is.
    """

    def __init__(self, free_slot: Optional[Callable[[], Optional[Slot]]]) -> None:
        self._free_slot = free_slot

    def __call__(self, samples: Any) -> Any:
        slot = None if self._free_slot is None else self._free_slot()
        with torch.no_grad():
            if isinstance(samples, Rows):
                return samples.collated(slot)
            first = samples[0]
            if slot is None or type(first) not in (tuple, list) or len(first) != len(slot):
                return default_collate(samples)
            if any(type(sample) is not type(first) or len(sample) != len(first) for sample in samples):
                return default_collate(samples)  # refuses them
            return [_stacked(column, slot, place) for place, column in enumerate(zip(*samples))]


def collate_straight(dataset: Any, free_slot: Callable[[], Optional[Slot]]) -> None:
    """Let a loader put its batches together by a `Collation`, if it would by torch's default.

    Args:
        dataset: What an accessor iterates: the worker's copy, which is changed.
        free_slot: Returns the slot to fill next; for loaders whose batches are items as they are.
    """
    if (
        not isinstance(dataset, DataLoader)
        or dataset.collate_fn is not default_collate
        or dataset.batch_sampler is None
    ):
        return
    dataset.collate_fn = Collation(free_slot if dataset.num_workers == 0 else None)
    source = dataset.dataset
    while type(source) is Subset:
        source = source.dataset
    if type(source) is TensorDataset and all(_is_plain(tensor) for tensor in source.tensors):
        source.__getitems__ = RowsOf(source)  # type: ignore[attr-defined]


def _stacked(values: Any, slot: Slot, place: int) -> Any:
    first = values[0]
    if not _is_plain(first) or any(
        type(value) is not torch.Tensor or value.dtype is not first.dtype for value in values
    ):
        return default_collate(values)
    return torch.stack(values, out=_target(slot, place, len(values), first.shape, first.dtype))


def _is_plain(tensor: Any) -> bool:
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_quantized


def _target(
    slot: Optional[Slot], place: int, rows: int, shape: Tuple[int, ...], dtype: torch.dtype
) -> Optional[torch.Tensor]:
    """Return the tensor of the slot that holds such a batch; None if it has another shape or type."""
    if slot is None or place >= len(slot):
        return None
    target = slot[place]
    return target if target.dtype is dtype and target.shape == (rows, *shape) else None
