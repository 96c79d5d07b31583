"""Data from loaders: the samples and the order are those of PyTorch, for every loader."""

from __future__ import annotations

from typing import Any, Iterator, List, Tuple

import torch
from ignite.engine import Events
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ignite_ipu.selftest.bench import Bench, agree, batches, joined
from ignite_ipu.selftest.promises import needs

PAGE = "quickstart.md"


class _Stream(IterableDataset[Tuple[torch.Tensor, torch.Tensor]]):
    """The task's samples one after the other, as from a file that is streamed."""

    def __iter__(self) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
        for x, y in batches():
            yield from zip(x, y)


def _data() -> TensorDataset:
    return TensorDataset(*joined(batches())[0])


def _compare(bench: Bench, data: Any, native: Any = None, epochs: int = 2, **settings: Any) -> None:
    """Train on data with two updates a call, each of two micro-batches, as in PyTorch on the loader's or the others."""
    pair = bench.pair(device_iterations=2, gradient_accumulation_steps=2, **settings)
    torch.manual_seed(4)
    pair.trainer.run(data, max_epochs=epochs)
    torch.manual_seed(4)
    pair.train([(x, y) for _ in range(epochs) for x, y in native or data], accumulation=2)
    pair.compare()


def shuffled(bench: Bench) -> None:
    """A shuffled DataLoader gives the samples in the same order as in PyTorch."""
    _compare(bench, DataLoader(_data(), batch_size=4, shuffle=True))


def iterable(bench: Bench) -> None:
    """A DataLoader over an IterableDataset feeds training like any other."""
    _compare(bench, DataLoader(_Stream(), batch_size=4))


def ready_batches(bench: Bench) -> None:
    """A list of ready global batches is taken one batch for each device call."""
    micro_batches = batches(12, size=4)
    _compare(bench, joined(micro_batches, calls=3), micro_batches, epochs=1)


def of_poptorch(bench: Bench) -> None:
    """A poptorch.DataLoader of one's own is used as it is."""
    options = bench.options().deviceIterations(2)
    options.Training.gradientAccumulation(2)
    loader = bench.poptorch.DataLoader(options, _data(), batch_size=4)
    _compare(bench, loader, DataLoader(_data(), batch_size=4))


@needs(page="metrics.md")
def asynchronous(bench: Bench) -> None:
    """An asynchronous loader gives the same batches, and batches that handlers keep are not overwritten."""
    loader = DataLoader(_data(), batch_size=4)
    kept: List[torch.Tensor] = []
    pair = bench.pair(device_iterations=2, config={"loader_mode": "Async"})
    trainer = pair.trainer
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: kept.append(trainer.state.batch[0]))
    trainer.run(loader, max_epochs=2)
    native = 2 * list(loader)
    agree(torch.cat(kept), torch.cat([x for x, _ in native]), "inputs that a handler has kept")
    pair.train(native)
    pair.compare()


@needs(page="metrics.md")
def asynchronous_rebatched(bench: Bench) -> None:
    """An asynchronous loader that joins batches in its worker process gives the same batches."""
    mode = bench.poptorch.DataLoaderMode.AsyncRebatched
    _compare(bench, DataLoader(_data(), batch_size=4), config={"loader_mode": mode})
