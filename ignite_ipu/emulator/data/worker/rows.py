"""Batches of a `TensorDataset`, taken from its tensors at once instead of row by row."""

from __future__ import annotations

import array
import functools
from typing import Any, Iterable, List, Sequence

import torch
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate


class _Rows(Sequence[Any]):
    """Rows of a data set that are not taken yet: for anyone but `_collate`, a sequence of them."""

    def __init__(self, dataset: TensorDataset, indices: List[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: Any) -> Any:
        return self.dataset[self.indices[place]]


def take_rows_at_once(loader: Iterable[Any]) -> None:
    """Change a loader with torch's default collation to take the rows of a batch from a `TensorDataset` at once.

    The data set may be within a `Subset`. Subclasses of either define their own rows.
    """
    if not isinstance(loader, DataLoader) or loader.collate_fn is not default_collate:
        return
    source = loader.dataset
    while type(source) is Subset:
        source = source.dataset
    if type(source) is TensorDataset and not hasattr(source, "__getitems__"):
        source.__getitems__ = functools.partial(_rows, source)  # type: ignore[attr-defined]
        loader.collate_fn = _collate


def _rows(dataset: TensorDataset, indices: Iterable[Any]) -> Sequence[Any]:
    indices, tensors = list(indices), dataset.tensors
    exist = set(map(type, indices)) == {int} and min(indices) >= 0 and max(indices) < min(map(len, tensors))
    if exist and all(type(t) is torch.Tensor and t.layout == torch.strided and not t.is_quantized for t in tensors):
        return _Rows(dataset, indices)
    return [dataset[index] for index in indices]


def _collate(samples: Any) -> Any:
    if not isinstance(samples, _Rows):
        return default_collate(samples)
    # Some ten times as fast as `torch.tensor` of a list.
    chosen = torch.frombuffer(array.array("q", samples.indices), dtype=torch.int64)
    return [tensor.index_select(0, chosen.to(tensor.device)) for tensor in samples.dataset.tensors]
