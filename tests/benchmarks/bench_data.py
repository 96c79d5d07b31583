"""Throughput of the asynchronous data loader over that of torch's loader with the same workers, as ratios of time.

"Read alone" only
takes the items, so its ratio is that of the two pipelines; "computes" works for about as long as loading takes, as a
model does, so that loading ahead pays.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Iterable, Iterator, Tuple

import torch
from torch.utils.data import Dataset, TensorDataset

from ignite_ipu.emulator.data import DataLoader, set_poisoning
from ignite_ipu.emulator.enums import DataLoaderMode, SharingStrategy
from ignite_ipu.emulator.options import Options
from tests.benchmarks.measures import Measure

REPEATS = 5


class Augmented(Dataset):  # type: ignore[type-arg]
    """Pictures that cost about as much as decoding a small one."""

    def __init__(self, n: int) -> None:
        self._pictures = torch.rand(n, 3, 64, 64)

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> Tuple[torch.Tensor, int]:
        return self._pictures[index].flip(-1).sub(0.5).div(0.25).clamp(-2, 2), index


def seconds_per_epoch(loader: Iterable[Any], step: float) -> float:
    """Return the time of one epoch when every item is followed by `step` seconds of work."""
    start = time.perf_counter()
    for item in loader:
        item[0].view(-1)[:1].item()
        until = time.perf_counter() + step
        while time.perf_counter() < until:
            pass
    return time.perf_counter() - start


def compare(dataset: Any, batch_size: int, workers: int, poison: bool) -> Tuple[float, float]:
    """Return the ratios for a caller that only reads and for one that computes."""
    before = set_poisoning(poison)
    reference = torch.utils.data.DataLoader(
        dataset, batch_size, num_workers=workers, drop_last=True, persistent_workers=workers > 0
    )
    ours = DataLoader(
        Options(),
        dataset,
        batch_size,
        num_workers=workers,
        mode=DataLoaderMode.Async,
        async_options={"sharing_strategy": SharingStrategy.Fork},
    )
    set_poisoning(before)
    # The first epoch starts processes and touches memory for the first time.
    seconds_per_epoch(ours, 0)
    step = seconds_per_epoch(reference, 0) / len(reference)
    ratios = []
    for work in (0.0, step):
        # Taken in turns, so that whatever else the machine does hits both.
        pairs = [(seconds_per_epoch(reference, work), seconds_per_epoch(ours, work)) for _ in range(REPEATS)]
        ratios.append(statistics.median(theirs / mine for theirs, mine in pairs))
    ours.terminate()
    return ratios[0], ratios[1]


def measures() -> Iterator[Measure]:
    """Yield the rows of the table: the time of torch's loader is 1."""
    rows = TensorDataset(torch.rand(20_000, 32), torch.arange(20_000))
    cases = [("rows of 32 numbers", rows, 128), ("pictures 3x64x64", Augmented(2_000), 64)]
    for name, dataset, batch_size in cases:
        for workers in (0, 1, 2):
            reads, computes = compare(dataset, batch_size, workers, poison=False)
            yield Measure(f"asynchronous loader / torch's, {name}, {workers} workers, read alone", 1 / reads, 1.1)
            yield Measure(f"asynchronous loader / torch's, {name}, {workers} workers, computing", 1 / computes, 1.0)
