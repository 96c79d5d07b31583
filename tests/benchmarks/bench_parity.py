"""The cost of parity of scripts: two loops under a recorder, on the host and on the device, against the same alone."""

from __future__ import annotations

from typing import Callable, Iterator, List, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import ipu_prepare
from ignite_ipu.parity.recorder import Recorder
from tests.benchmarks.measures import Measure, ratio_of_fresh
from tests.benchmarks.models import Batch, batches, perceptron, width_for

ROWS = 64
LAYERS, WIDTH = 200, 32


def measures() -> Iterator[Measure]:
    """Yield the rows of the table."""
    width = width_for(5e-3, ROWS)
    for name, layers, size in (("step of 5 ms", 3, width), (f"{LAYERS} layers", LAYERS, WIDTH)):
        data = batches(8, ROWS, size)
        yield ratio_of_fresh(
            f"two runs recorded by parity / alone, {name}",
            lambda data=data, size=size, layers=layers: both(size, layers, data),
            1.3,
            len(data),
        )


def both(width: int, layers: int, data: List[Batch]) -> Tuple[Callable[[], None], Callable[[], None]]:
    """Return a pass of a loop on the host and on the device under a recorder, and the same pass alone."""
    loops = [loop(width, layers, data, captured) for captured in (False, True)]

    def alone() -> None:
        for run in loops:
            run()

    def recorded() -> None:
        for run in loops:
            recorder = Recorder(len(data))
            recorder.start()
            try:
                run()
            finally:
                recorder.stop()

    return recorded, alone


def loop(width: int, layers: int, data: List[Batch], captured: bool) -> Callable[[], None]:
    """Return a pass of a loop over batches."""
    model: nn.Module = perceptron(width, layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, foreach=True)
    if captured:
        ipu_prepare(optimizer, model)
    model.train()

    def run() -> None:
        list(model.named_parameters())  # by which the recorder knows the model
        for x, y in data:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            loss.item()

    return run
