"""Time of the emulator's data loaders, relative to torch's loader with the same workers, and until the first batch.

"Read alone" only takes the items, so its ratio is that of the two pipelines; "computing" works for about as long as
loading takes, as a model does, so that loading ahead pays. The first batch of the first loader waits for the import of
torch, in the server that all other processes are forked from; the rows are those of a second loader.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from typing import Any, Dict, Iterable, Iterator, Tuple
from unittest import mock

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


def until_first_batch(workers: int, **arguments: Any) -> float:
    """Return the seconds from making a loader to its first batch, the median of a few after a first one.

    Args:
        workers: Its own processes.
        arguments: Those of the emulator's loader; without any it is torch's.
    """
    dataset, taken = TensorDataset(torch.rand(2_000, 32), torch.arange(2_000)), []
    for _ in range(1 + REPEATS):
        start = time.perf_counter()
        if arguments:
            loader: Any = DataLoader(Options(), dataset, 16, num_workers=workers, **arguments)
        else:
            loader = torch.utils.data.DataLoader(dataset, 16, num_workers=workers)
        iterator = iter(loader)
        next(iterator)
        taken.append(time.perf_counter() - start)
        getattr(loader, "terminate", int)()
        del loader, iterator
    return statistics.median(taken[1:])


def more() -> Iterator[Measure]:
    """Yield the rows of the table: the time of torch's loader is 1."""
    rows = TensorDataset(torch.rand(20_000, 32), torch.arange(20_000))
    asynchronous: Dict[str, Any] = {"mode": DataLoaderMode.Async}
    of_server = {"mode": DataLoaderMode.Sync, "multiprocessing_context": "forkserver"}
    in_both = {**asynchronous, "multiprocessing_context": "spawn"}
    kinds = [("asynchronous", asynchronous), ("from the server", of_server), ("asynchronous, spawned", in_both)]
    # torch warns of more workers than cores, here and in the server, which reads the variable.
    with warnings.catch_warnings(), mock.patch.dict(os.environ, PYTHONWARNINGS="ignore"):
        warnings.simplefilter("ignore")
        for workers in (2, 8, 16):
            theirs = until_first_batch(workers)
            for kind, arguments in kinds:
                ours = until_first_batch(workers, **arguments)
                name = f"until the first batch, {kind}, {workers} workers (0.5 s, or what torch takes to fork them)"
                yield Measure(name, ours, max(0.5, theirs), "s", f"{1e3 * ours:.3g} / {1e3 * theirs:.3g} ms")
    cases = [("rows of 32 numbers", rows, 128), ("pictures 3x64x64", Augmented(2_000), 64)]
    for name, dataset, batch_size in cases:
        for workers in (0, 1, 2):
            reads, computes = compare(dataset, batch_size, workers, poison=False)
            yield Measure(f"asynchronous loader / torch's, {name}, {workers} workers, read alone", 1 / reads, 1.1)
            yield Measure(f"asynchronous loader / torch's, {name}, {workers} workers, computing", 1 / computes, 1.0)
