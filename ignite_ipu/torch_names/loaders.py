"""Private names of `torch.utils.data`."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu.torch_names.table import attribute, inherited

__all__ = ["iterator_of", "set_iterator", "shut_down_workers"]

_ITERATOR = attribute(
    "torch.utils.data.DataLoader._iterator",
    "2.0",
    "A loader with persistent workers, given to an asynchronous loader, keeps its processes.",
    lambda: DataLoader(TensorDataset(torch.zeros(1))),
)
_SHUT_DOWN = attribute(
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter._shutdown_workers",
    "2.0",
    "Workers of a loader within an asynchronous loader end when the process ends.",
    lambda: __import__("torch.utils.data.dataloader", fromlist=["_"])._MultiProcessingDataLoaderIter,
)
inherited(
    "torch.utils.data.DataLoader._get_iterator",
    "2.0",
    "Workers of a synchronous loader report a failure with PyTorch's own error.",
    "ignite_ipu.emulator.data.loader",
)


def iterator_of(loader: Any) -> Optional[Any]:
    """Return the iterator that a loader keeps for its persistent workers; None if there is none."""
    return getattr(loader, _ITERATOR, None)


def set_iterator(loader: Any, iterator: Optional[Any]) -> None:
    """Set the iterator that a loader keeps for its persistent workers."""
    setattr(loader, _ITERATOR, iterator)


def shut_down_workers(iterator: Any) -> None:
    """Let the processes of a loader's iterator finish their tasks, and end; without effect for other iterators."""
    getattr(iterator, _SHUT_DOWN, lambda: None)()
