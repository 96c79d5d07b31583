"""Cost of updates on the host: a captured loop with them against the same loop with updates on the device."""

from __future__ import annotations

import functools
from typing import Callable, Iterator, List

import torch

from ignite_ipu import IPUConfig, ipu_prepare
from tests.benchmarks.measures import Measure, ratio_of_fresh
from tests.benchmarks.models import Batch, batches, perceptron, train_on, width_for

ROWS = 64
LAYERS, WIDTH = 200, 32


def measures() -> Iterator[Measure]:
    """Yield the rows of the table."""
    width = width_for(5e-3, ROWS)
    for name, layers, size, aim in (("step of 5 ms", 3, width, 1.3), (f"{LAYERS} layers", LAYERS, WIDTH, 1.5)):
        data = batches(12, ROWS, size)
        yield ratio_of_fresh(
            f"updates on the host / on the device, {name}",
            lambda data=data, size=size, layers=layers: (
                loop("host", size, layers, data),
                loop("device", size, layers, data),
            ),
            aim,
            len(data),
        )


def loop(update: str, width: int, layers: int, data: List[Batch]) -> Callable[[], None]:
    """Return a pass of a captured loop over batches."""
    model = perceptron(width, layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, foreach=True)
    ipu_prepare(optimizer, model, config=IPUConfig(update=update))
    model.train()
    return functools.partial(train_on, data, model, optimizer)
