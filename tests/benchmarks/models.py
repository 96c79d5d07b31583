"""Models, batches and hand-written PopTorch loops that benchmarks compare with."""

from __future__ import annotations

import functools
import statistics
from typing import Any, Callable, Dict, List, Tuple, Type

import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import backend
from tests.benchmarks.measures import seconds

Batch = Tuple[torch.Tensor, torch.Tensor]


class WithLoss(nn.Module):
    """A model as written for PopTorch by hand."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(x), y)


class WithMarkedLoss(WithLoss):
    """The same with its loss marked, as PopTorch needs it for a loss of any formula."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = backend.poptorch().identity_loss(super().forward(x, y), reduction="none")
        return loss


def perceptron(width: int, layers: int = 3) -> nn.Module:
    torch.manual_seed(0)
    hidden = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def batches(count: int, rows: int, width: int) -> List[Batch]:
    return [(torch.randn(rows, width), torch.randint(0, 10, (rows,))) for _ in range(count)]


def train_once(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    """Make one step of a loop that looks at nothing."""
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def train_on(data: List[Batch], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Make a pass of a loop over batches, which looks at each loss."""
    for x, y in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        loss.item()


def executor_of(model: nn.Module, step: Type[WithLoss] = WithLoss, **options: Any) -> Any:
    """Return an executor that trains by SGD, as written by hand."""
    poptorch = backend.poptorch()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    return poptorch.trainingModel(step(model), optimizer=optimizer, **options)


def poptorch_loop(model: nn.Module, data: Any) -> Callable[[], None]:
    """Return a pass of a hand-written loop over data."""
    executor = executor_of(model)

    def run() -> None:
        for x, y in data:
            executor(x, y).item()

    return run


@functools.lru_cache(maxsize=None)
def width_for(wanted: float, rows: int, layers: int = 3) -> int:
    """Return the width of a perceptron whose hand-written steps take about this many seconds on this machine."""
    taken: Dict[int, float] = {}

    def is_long(width: int) -> bool:
        data = batches(4, rows, width)
        loop = poptorch_loop(perceptron(width, layers), data)
        for _ in range(5):  # the first steps touch memory for the first time, and take longer
            loop()
        taken[width] = statistics.median(seconds(loop) / len(data) for _ in range(5))
        return taken[width] > wanted

    longer = 64
    while not is_long(longer):
        longer *= 2
    shorter = longer // 2
    while longer - shorter > max(32, longer // 16):
        middle = (longer + shorter) // 64 * 32
        shorter, longer = (shorter, middle) if is_long(middle) else (middle, longer)
    return min(taken, key=lambda width: abs(taken[width] - wanted))
