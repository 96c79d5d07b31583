"""Time of a new model's first step, which compiles, beside that of hand-written PopTorch and of plain PyTorch.

The limit is a hand-written first step with the work that a library cannot leave out. PopTorch replaces PyTorch's
normalisation and GELU by approximations, and the model may call them anywhere, so a context computes them by operators
that PopTorch compiles as they are. Two calls of the model on the host record its operators: values that change with
each call show in their differences alone, and later calls are compared with them. The Python values that the model's
code reads are found once.

Garbage is collected before each first step: that of earlier rows, in the middle of another one, takes as long.
"""

from __future__ import annotations

import gc
import statistics
import time
from typing import Callable, Iterator, List

import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import backend, create_ipu_trainer
from ignite_ipu.program.forward.equivalents import Equivalents
from ignite_ipu.program.guards.python_state import PythonState
from ignite_ipu.program.guards.retrace import Operation, OperatorRecorder
from tests.benchmarks.measures import SECONDS, Measure, Work, seconds
from tests.benchmarks.models import WithLoss, batches, poptorch_loop, train_once

BLOCKS, WIDTH, MOST = 60, 64, 12


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Exact(WithLoss):
    """The model by operators that PopTorch compiles without an approximation."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with Equivalents():
            return super().forward(x, y)


def model() -> nn.Module:
    return nn.Sequential(*(Block(WIDTH) for _ in range(BLOCKS)), nn.Linear(WIDTH, 10))


DATA = batches(1, 32, WIDTH)


def measures() -> Iterator[Measure]:
    """Yield the row of the table."""
    yield beside("hand-written PopTorch", by_hand, 1.3, by_hand_after_calls)


def more() -> Iterator[Measure]:
    """Yield a further row."""
    yield beside("plain PyTorch", plain, 2)


def beside(name: str, other: Callable[[], Work], aim: float, *least: Callable[[], Work]) -> Measure:
    """Measure the first step of a model against another one, and the limit if there is one."""
    rows: List[List[float]] = []
    end = time.perf_counter() + SECONDS
    while len(rows) < 5 or (len(rows) < MOST and time.perf_counter() < end):
        rows.append([first(make) for make in (ours, other, *least)])
    del rows[0]  # imports, and other work that is done once
    ratio, *limits = (statistics.median(row[place] / row[1] for row in rows) for place in (0, 2)[: 1 + len(least)])
    each = " / ".join(f"{1e3 * statistics.median(side):.3g}" for side in list(zip(*rows))[:2])
    title = f"first step of {BLOCKS} blocks / {name}'s first"
    return Measure(title, ratio, aim, "", f"{each} ms", limits[0] if limits else None)


def first(make: Callable[[], Work]) -> float:
    """Return the processor seconds of a new model's first step."""
    work = make()
    gc.collect()
    return seconds(work)


def ours() -> Work:
    made = model()
    trainer = create_ipu_trainer(made, torch.optim.SGD(made.parameters(), lr=1e-4, momentum=0.9), F.cross_entropy)
    return lambda: trainer._process_function(trainer, DATA[0])


def by_hand() -> Work:
    return poptorch_loop(model(), DATA)


def by_hand_after_calls() -> Work:
    poptorch, made = backend.poptorch(), model()
    on_host, step = WithLoss(made), Exact(made)
    executor = poptorch.trainingModel(step, optimizer=poptorch.optim.SGD(made.parameters(), lr=1e-4, momentum=0.9))

    def recorded() -> List[Operation]:
        recorder = OperatorRecorder()
        recorder.mark(DATA[0])
        with recorder, torch.no_grad():
            on_host(*DATA[0])
        return recorder.operations

    def run() -> None:
        state = PythonState(made, F.cross_entropy)
        assert recorded() == recorded() and state.values() is state.values()
        executor(*DATA[0]).item()

    return run


def plain() -> Work:
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=1e-4, momentum=0.9)
    return lambda: train_once(made, optimizer, *DATA[0])
