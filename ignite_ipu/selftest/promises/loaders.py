"""Data from loaders: the samples and the order are the native ones, whoever loads them."""

from __future__ import annotations

from typing import Any, Iterator, List, Tuple

import torch
from ignite.engine import Events
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ignite_ipu.selftest.bench import Bench
from ignite_ipu.selftest.promise import Promises
from ignite_ipu.selftest.reference import Batch, agree, batches, joined

PROMISES = Promises("loaders", "quickstart.md")


class _Stream(IterableDataset[Tuple[torch.Tensor, torch.Tensor]]):
    """The task's samples one after the other, as from a file that is streamed."""

    def __iter__(self) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
        for x, y in batches():
            yield from zip(x, y)


def _data() -> TensorDataset:
    return TensorDataset(*joined(batches())[0])


def _compare(bench: Bench, data: Any, expected: List[Batch], epochs: int = 2, **settings: Any) -> None:
    """Train on data with two updates a call, each of two micro-batches."""
    pair = bench.pair(device_iterations=2, gradient_accumulation_steps=2, **settings)
    torch.manual_seed(4)
    pair.trainer.run(data, max_epochs=epochs)
    pair.train(expected, accumulation=2)
    pair.compare()


def _native_order(loader: DataLoader[Any], epochs: int = 2) -> List[Batch]:
    torch.manual_seed(4)
    return [(x, y) for _ in range(epochs) for x, y in loader]


@PROMISES.promise()
def shuffled(bench: Bench) -> None:
    """A shuffled DataLoader gives the samples in the order in which it gives them natively."""
    loader = DataLoader(_data(), batch_size=4, shuffle=True)
    _compare(bench, loader, _native_order(loader))


@PROMISES.promise()
def iterable(bench: Bench) -> None:
    """A DataLoader over an IterableDataset feeds training like any other."""
    loader = DataLoader(_Stream(), batch_size=4)
    _compare(bench, loader, _native_order(loader))


@PROMISES.promise()
def ready_batches(bench: Bench) -> None:
    """A list of ready global batches is taken one batch for each device call."""
    micro_batches = batches(12, size=4)
    _compare(bench, joined(micro_batches, calls=3), micro_batches, epochs=1)


@PROMISES.promise()
def of_poptorch(bench: Bench) -> None:
    """A poptorch.DataLoader of one's own is used as it is."""
    options = bench.options().deviceIterations(2)
    options.Training.gradientAccumulation(2)
    loader = bench.poptorch.DataLoader(options, _data(), batch_size=4)
    _compare(bench, loader, _native_order(DataLoader(_data(), batch_size=4)))


@PROMISES.promise(page="metrics.md")
def asynchronous(bench: Bench) -> None:
    """An asynchronous loader gives the same batches, and what handlers keep of them is not overwritten."""
    loader = DataLoader(_data(), batch_size=4)
    kept: List[torch.Tensor] = []
    pair = bench.pair(device_iterations=2, config={"loader_mode": "Async"})
    trainer = pair.trainer
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: kept.append(trainer.state.batch[0]))
    trainer.run(loader, max_epochs=2)
    agree(torch.cat(kept), torch.cat([x for x, _ in _native_order(loader)]), "inputs that a handler has kept")
    pair.train(_native_order(loader))
    pair.compare()


@PROMISES.promise(page="metrics.md")
def asynchronous_rebatched(bench: Bench) -> None:
    """An asynchronous loader that joins batches in its worker process gives the same batches."""
    loader = DataLoader(_data(), batch_size=4)
    mode = bench.poptorch.DataLoaderMode.AsyncRebatched
    _compare(bench, loader, _native_order(loader), config={"loader_mode": mode})
