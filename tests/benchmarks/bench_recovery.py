"""Cost of `Recovery`: training with snapshots at several cadences, against training without."""

from __future__ import annotations

import tempfile
from typing import Callable, Iterator

import torch
from torch import nn

from ignite_ipu import create_ipu_trainer
from ignite_ipu.engines.engine import IPUTrainer
from ignite_ipu.handlers import Recovery
from tests.benchmarks.measures import Measure, ratio
from tests.benchmarks.models import batches, perceptron

WIDTH, CALLS = 512, 100


def measures() -> Iterator[Measure]:
    """Yield the rows of the table."""
    for every, aim in ((100, 1.05), (10, 1.15), (1, 2.0)):
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = epoch(Recovery(folder, every=every).attach), epoch(lambda trainer: None)
            yield ratio(f"training with a snapshot every {every} calls / without", ours, theirs, aim, CALLS, pairs=7)


def epoch(attach: Callable[[IPUTrainer], object]) -> Callable[[], object]:
    model = perceptron(WIDTH, 2)
    trainer = create_ipu_trainer(model, torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss())
    attach(trainer)
    data = batches(4, 32, WIDTH) * (CALLS // 4)
    return lambda: trainer.run(data)
