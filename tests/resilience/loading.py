"""Programs with many processes, to be killed: `python -m tests.resilience.loading KIND`.

Each says `ready PID` when all of its processes run, PID being the one that loads data, and goes on until it is killed.
"""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any, Callable, Dict

import torch
from torch.utils.data import Dataset, IterableDataset

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator import DataLoaderMode, SharingStrategy


class Images(Dataset):
    """So many that an epoch does not end, and so large that pipes are full."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Any:
        return torch.full((32, 32), float(index)), index


class Nested(IterableDataset):
    """A data set that loads its items in processes of its own."""

    def __iter__(self) -> Any:
        images = loader(DataLoaderMode.Async)
        for item in images:
            yield item[0].clone(), item[1].clone()


class Hanging(IterableDataset):
    """A data set whose second item does not come."""

    def __iter__(self) -> Any:
        yield torch.zeros(1)
        while True:
            time.sleep(1000)


def loader(mode: DataLoaderMode, strategy: SharingStrategy = SharingStrategy.Fork, **arguments: Any) -> Any:
    asynchronous = {"async_options": {"sharing_strategy": strategy}} if mode != DataLoaderMode.Sync else {}
    return poptorch.DataLoader(
        poptorch.Options(), Images(), batch_size=8, num_workers=2, mode=mode, **asynchronous, **arguments
    )


def accessor(data: Any) -> poptorch.AsynchronousDataAccessor:
    return poptorch.AsynchronousDataAccessor(data, sharing_strategy=SharingStrategy.Fork)


KINDS: Dict[str, Callable[[], Any]] = {
    "fork": lambda: loader(DataLoaderMode.Async),
    "fork server": lambda: loader(DataLoaderMode.Async, SharingStrategy.ForkServer),
    "spawn": lambda: loader(DataLoaderMode.Async, SharingStrategy.SharedMemory),
    "file": lambda: loader(DataLoaderMode.Async, SharingStrategy.FileSystem),
    "spawned loaders": lambda: loader(DataLoaderMode.Async, multiprocessing_context="spawn"),
    "synchronous": lambda: loader(DataLoaderMode.Sync),
    "nested": lambda: accessor(Nested()),
    "hanging": lambda: accessor(Hanging()),
}


def main(kind: str) -> None:
    data = KINDS[kind]()
    items = iter(data)
    for count in itertools.count():
        if count < 3 and not (kind == "hanging" and count):
            next(items)
            continue
        if count == 3:
            of_data = getattr(data, "_accessor", data)
            worker = getattr(of_data, "_worker", None)
            print("ready", 0 if worker is None else worker.pid, flush=True)
        if count % 50 == 0 and kind != "hanging":
            next(items)
        time.sleep(0.001)


if __name__ == "__main__":
    main(sys.argv[1])
