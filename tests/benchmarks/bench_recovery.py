"""Cost of `Recovery`: training with snapshots at several cadences, against training without.

The limit is a hand-written step after which the values are copied to the host with which it can be made again: weights
and optimizer state by PopTorch's methods for that, the random states of device and host, and the batch.
"""

from __future__ import annotations

import tempfile
from typing import Any, Callable, Iterator

import torch
from torch import nn

from ignite_ipu import backend, create_ipu_trainer
from ignite_ipu.checkpoints.random_states import read_random_states
from ignite_ipu.engines.trainer import IPUTrainer
from ignite_ipu.handlers import Recovery
from tests.benchmarks.measures import Measure, ratio
from tests.benchmarks.models import WithLoss, batches, perceptron

WIDTH, CALLS = 512, 100


def measures() -> Iterator[Measure]:
    """Yield the row of the table."""
    yield training("in every call", 1, 1.5)


def more() -> Iterator[Measure]:
    """Yield the rows of other cadences."""
    for every, aim in ((100, 1.05), (10, 1.15)):
        yield training(f"every {every} calls", every, aim)


def training(name: str, every: int, aim: float) -> Measure:
    """Measure an epoch with snapshots."""
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = epoch(Recovery(folder, every=every).attach), epoch(lambda trainer: None)
        least = by_hand(every)
        return ratio(f"a snapshot {name} / without", ours, theirs, aim, CALLS, pairs=7, least=least)


def epoch(attach: Callable[[IPUTrainer], object]) -> Callable[[], object]:
    """Return an epoch of a trainer."""
    model = perceptron(WIDTH, 2)
    trainer = create_ipu_trainer(model, torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss())
    attach(trainer)
    data = batches(4, 32, WIDTH) * (CALLS // 4)
    return lambda: trainer.run(data)


def by_hand(every: int) -> Callable[[], object]:
    """Return an epoch of a hand-written loop that copies the state that a later process needs."""
    poptorch, model = backend.poptorch(), perceptron(WIDTH, 2)
    optimizer = poptorch.optim.Adam(model.parameters())
    executor: Any = poptorch.trainingModel(WithLoss(model), optimizer=optimizer)
    data = batches(4, 32, WIDTH) * (CALLS // 4)

    def run() -> Any:
        kept: Any = None
        for number, (x, y) in enumerate(data, 1):
            executor(x, y).item()
            batch = x.clone(), y.clone()
            if number % every == 0:
                executor.copyWeightsToHost()
                weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
                kept = batch, weights, optimizer.state_dict(), executor.rng_state, read_random_states()
        return kept

    return run
