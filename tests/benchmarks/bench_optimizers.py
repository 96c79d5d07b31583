"""Cost of one optimizer update: the emulator's device against torch.optim with foreach=True."""

from __future__ import annotations

from typing import Callable, Dict, Iterator, List, Tuple

import torch

from ignite_ipu.emulator.optim.description import describe
from ignite_ipu.emulator.optim.device.optimizer import DeviceOptimizer
from tests.benchmarks.measures import Measure, ratio

Make = Callable[[List[torch.nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS: Dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-3, foreach=True),
    "SGD, momentum and decay": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, weight_decay=1e-4, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, foreach=True),
    "RMSprop, centered": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.9, foreach=True),
}
WEIGHTS = 100
SIZES: Dict[str, Tuple[int, ...]] = {"tiny (8)": (8,), "64 x 64": (64, 64), "512 x 512": (512, 512)}


def more() -> Iterator[Measure]:
    """Yield the rows of the table."""
    for name, make in OPTIMIZERS.items():
        for size, shape in SIZES.items():
            ours, theirs = updates(make, shape)
            title = f"update of {WEIGHTS} weights / foreach of torch.optim, {name}, {size}"
            yield ratio(title, ours, theirs, 1.0, pairs=31)


def updates(make: Make, shape: Tuple[int, ...]) -> Tuple[Callable[[], object], Callable[[], object]]:
    """Return one update on the device, and in torch."""
    parameters = [torch.nn.Parameter(torch.randn(shape)) for _ in range(WEIGHTS)]
    grads = [torch.randn(shape) for _ in range(WEIGHTS)]
    for parameter, grad in zip(parameters, grads):
        parameter.grad = grad
    optimizer = make(parameters)
    weights = {f"w{index}": parameter.detach().clone() for index, parameter in enumerate(parameters)}
    device = DeviceOptimizer(describe(optimizer), weights, {name: 0 for name in weights})
    return lambda: device.update(grads), optimizer.step
