"""Loading data: PopTorch's data loader, its asynchronous accessor, and how strict the latter is."""

from __future__ import annotations

from ignite_ipu.emulator.data.accessor import AsynchronousDataAccessor
from ignite_ipu.emulator.data.loader import DataLoader
from ignite_ipu.emulator.data.strictness import poisons_stale_batches, set_poisoning, set_worker_timeout, worker_timeout

__all__ = [
    "AsynchronousDataAccessor",
    "DataLoader",
    "poisons_stale_batches",
    "set_poisoning",
    "set_worker_timeout",
    "worker_timeout",
]
