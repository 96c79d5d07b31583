"""What the shim costs over a hand-written PopTorch loop, and the emulator over plain PyTorch.

Run `python -m tests.benchmarks engines`. Each ratio is the median over rounds in which both sides run in turn.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable, List, Tuple

import torch
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu import create_ipu_evaluator, create_ipu_trainer

ROUNDS = 15
Run = Callable[[], Any]


class WithLoss(nn.Module):
    """What somebody writes for PopTorch by hand."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(x), y)


def perceptron(width: int, layers: int) -> nn.Module:
    torch.manual_seed(0)
    hidden = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def batches(count: int, rows: int, width: int) -> List[Tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(rows, width), torch.randint(0, 10, (rows,))) for _ in range(count)]


def ratio(ours: Run, theirs: Run) -> Tuple[float, float, float]:
    """Return the median ratio, and the median milliseconds of both sides."""
    ours(), theirs()
    mine, other, ratios = [], [], []
    for number in range(ROUNDS):
        order = (ours, theirs) if number % 2 else (theirs, ours)
        times = {}
        for run in order:
            start = time.perf_counter()
            run()
            times[run] = time.perf_counter() - start
        mine.append(times[ours])
        other.append(times[theirs])
        ratios.append(times[ours] / times[theirs])
    return statistics.median(ratios), 1e3 * statistics.median(mine), 1e3 * statistics.median(other)


def row(name: str, aim: str, result: Tuple[float, float, float], steps: int) -> None:
    value, mine, other = result
    print(f"{name:58}{mine / steps:10.3f}{other / steps:10.3f}{value:9.3f}   {aim}", flush=True)


def shim_against_poptorch(name: str, width: int, layers: int, rows: int, steps: int) -> None:
    data = batches(steps, rows, width)
    by_hand = perceptron(width, layers)
    executor = poptorch.trainingModel(
        WithLoss(by_hand), optimizer=poptorch.optim.SGD(by_hand.parameters(), lr=1e-4, momentum=0.9)
    )
    model = perceptron(width, layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    trainer = create_ipu_trainer(model, optimizer, nn.functional.cross_entropy)
    step = trainer._process_function

    def loop() -> None:
        for x, y in data:
            executor(x, y).item()

    def engine() -> None:
        for batch in data:
            step(trainer, batch)

    row(name, "<= 1.02", ratio(engine, loop), steps)


def emulator_against_eager(name: str, model: Callable[[], nn.Module], data: List[Any]) -> None:
    eager = model()
    eager_optimizer = torch.optim.SGD(eager.parameters(), lr=1e-4, momentum=0.9)
    inner = model()
    executor = poptorch.trainingModel(
        WithLoss(inner), optimizer=poptorch.optim.SGD(inner.parameters(), lr=1e-4, momentum=0.9)
    )

    def loop() -> None:
        for x, y in data:
            eager_optimizer.zero_grad()
            nn.functional.cross_entropy(eager(x), y).backward()
            eager_optimizer.step()

    def device() -> None:
        for x, y in data:
            executor(x, y)

    row(name, "<= 1.05", ratio(device, loop), len(data))


def flat_in_device_iterations() -> None:
    rows, width, total = 8, 256, 256
    x, y = torch.randn(rows * total, width), torch.randint(0, 10, (rows * total,))
    runs = {}
    for iterations in (1, 16, 256):
        model = perceptron(width, 4)
        options = poptorch.Options().deviceIterations(iterations)
        executor = poptorch.trainingModel(
            WithLoss(model), options, poptorch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)
        )
        size = rows * iterations

        def run(executor: Any = executor, size: int = size) -> None:
            for start in range(0, len(x), size):
                executor(x[start : start + size], y[start : start + size])

        runs[iterations] = run
    for iterations in (16, 256):
        result = ratio(runs[iterations], runs[1])
        row(f"deviceIterations {iterations} / 1, time per micro-batch", "within 5 %, or less", result, total)


def evaluation_after_training() -> None:
    model = perceptron(2048, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    trainer = create_ipu_trainer(model, optimizer, nn.functional.cross_entropy)
    evaluator = create_ipu_evaluator(model)
    ((x, y),) = batches(1, 1, 2048)
    session = trainer.ipu
    trainer._process_function(trainer, (x, y))
    evaluator._process_function(evaluator, (x, y))
    sources = [torch.randn_like(parameter) for parameter in perceptron(2048, 5).parameters()]
    targets = [torch.empty_like(source) for source in sources]

    def switch() -> None:
        session.weights.trained()
        assert session.training is not None and session.training.executor is not None
        session.training.executor._weight_copies.device_is_newer = True
        session.weights.to_inference()

    def copy() -> None:
        for _ in range(2):
            for source, target in zip(sources, targets):
                target.copy_(source)

    size = sum(source.numel() * source.element_size() for source in sources)
    row(f"one switch to evaluation / memcpy both ways of {size >> 20} MiB", "about 1", ratio(switch, copy), 1)


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    poptorch.setLogLevel("ERR")
    print(f"{'':58}{'ms':>10}{'ms':>10}{'ratio':>9}   aim")
    shim_against_poptorch("shim / hand-written PopTorch, step of about 5 ms", 512, 6, 32, 20)
    shim_against_poptorch("shim / hand-written PopTorch, step of about 50 ms", 1024, 8, 128, 4)
    shim_against_poptorch("shim / hand-written PopTorch, 200 small layers", 32, 200, 8, 10)
    images = [(torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,))) for _ in range(10)]

    def convolutions() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 16, 3),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 12 * 12, 10),
        )

    emulator_against_eager("emulator / plain PyTorch, MLP", lambda: perceptron(512, 6), batches(20, 32, 512))
    emulator_against_eager("emulator / plain PyTorch, CNN", convolutions, images)
    flat_in_device_iterations()
    evaluation_after_training()


if __name__ == "__main__":
    main()
