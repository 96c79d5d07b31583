"""Cost of updates on the host: a captured loop with them against the same loop with updates on the device.

The limit is hand-written: a program that changes no weight and returns its gradients by anchored tensors, the step of
PyTorch's optimizer, and the upload of the weights.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterator, List, Tuple

import torch

from ignite_ipu import IPUConfig, backend, ipu_prepare
from tests.benchmarks.measures import Measure, ratio_of_fresh
from tests.benchmarks.models import Batch, WithLoss, batches, perceptron, train_on, width_for

ROWS = 64
LAYERS, WIDTH = 200, 32


def measures() -> Iterator[Measure]:
    """Yield the rows of the table."""
    width = width_for(5e-3, ROWS)
    for name, layers, size, aim in (("step of 5 ms", 3, width, 1.3), (f"{LAYERS} layers", LAYERS, WIDTH, 1.5)):
        data = batches(12, ROWS, size)
        make = functools.partial(loops, size, layers, data)
        yield ratio_of_fresh(f"updates on the host / on the device, {name}", make, aim, len(data))


def loops(width: int, layers: int, data: List[Batch]) -> Tuple[Callable[[], None], ...]:
    """Return a pass of a captured loop with each kind of update, and of a hand-written one with updates on the host."""
    return loop("host", width, layers, data), loop("device", width, layers, data), by_hand(width, layers, data)


def loop(update: str, width: int, layers: int, data: List[Batch]) -> Callable[[], None]:
    """Return a pass of a captured loop over batches."""
    model = perceptron(width, layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, foreach=True)
    ipu_prepare(optimizer, model, config=IPUConfig(update=update))
    model.train()
    return functools.partial(train_on, data, model, optimizer)


def by_hand(width: int, layers: int, data: List[Batch]) -> Callable[[], None]:
    """Return a pass of a hand-written loop whose updates PyTorch makes."""
    poptorch, model = backend.poptorch(), perceptron(width, layers)
    # PopTorch adds methods to the model that it wraps, and downloads its weights when one of them is read.
    twin = WithLoss(perceptron(width, layers))
    for mine, its in zip(model.parameters(), twin.parameters()):
        its.data = mine.data
    options, names = poptorch.Options(), [name for name, _ in twin.named_parameters()]
    for name in names:
        options.anchorTensor(name, f"Gradient___{name}")
    still = poptorch.optim.SGD(twin.parameters(), lr=0.0)
    executor: Any = poptorch.trainingModel(twin, options=options, optimizer=still)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, foreach=True)
    parameters = list(model.parameters())

    def run() -> None:
        for x, y in data:
            optimizer.zero_grad()
            loss = executor(x, y)
            for name, parameter in zip(names, parameters):
                parameter.grad = executor.getAnchoredTensor(name)
            optimizer.step()
            executor.copyWeightsToDevice()
            loss.item()

    return run
