"""Cost of the emulator over plain PyTorch for the same work: forward, backward, and the optimizer's update.

For whole-step compilation the limit is the time of the step's matrix products and convolutions and of its update, which
goes through weights, velocities and the gradients that the products have just made. For inference it is PyTorch itself
without its operators for whole layers. Both look at the range of whole numbers in the batch, which an IPU may lack, and
copy the results, which are the caller's.
Memory of training is measured in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.compiler import inductor
from ignite_ipu.torch_names.dispatch import TorchDispatchMode
from ignite_ipu.torch_names.lists import fused_sgd_
from tests.benchmarks.measures import Measure, ratio, seconds
from tests.benchmarks.models import batches, executor_of, perceptron

COMPILED = {"IGNITE_IPU_EMULATOR_COMPILE": "inductor"}


def measures() -> Iterator[Measure]:
    """Yield the rows of the table."""
    for name in ("MLP", "transformer"):
        yield inference(f"emulator / plain PyTorch, inference, {name}", name)
    for name in MODELS:
        with mock.patch.dict(os.environ, COMPILED):
            title = f"emulator with whole-step compilation / plain PyTorch, training, {name}"
            yield training(title, name, 0.7, least=least_step(MODELS[name](), *batch_of(name)))


def more() -> Iterator[Measure]:
    """Yield further rows."""
    for name in MODELS:
        yield training(f"emulator / plain PyTorch, training, {name}", name, 1.0)
    yield inference("emulator / plain PyTorch, inference, CNN", "CNN")
    for name in MODELS:
        with mock.patch.dict(os.environ, COMPILED):
            taken = seconds(lambda: wrapped_step(MODELS[name](), *batch_of(name)), time.perf_counter)  # noqa: B023
        yield Measure(f"whole-step compilation, {name}", taken, 10, "s")
    yield from flat_in_device_iterations()
    resident, moments = memory_in_a_process(100_000_000)
    # Host and device have the weights, and while gradients are there one of both has them once more.
    yield Measure(
        "memory of training with Adam, host and device / weights and moments twice", resident / (2 + moments), 1.15
    )


class Mlp(nn.Module):
    """Three layers of 512."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.layers(x), y)


class Cnn(nn.Module):
    """Three convolutions with batch norm, on 32x32 pictures."""

    def __init__(self) -> None:
        super().__init__()
        blocks: List[nn.Module] = []
        for before, after in ((3, 16), (16, 32), (32, 64)):
            blocks += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(64 * 16, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.blocks(x).flatten(1)), y)


class Transformer(nn.Module):
    """Four encoder layers of width 128 over 32 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(128, 1000)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.encoder(self.embedding(x))).flatten(0, 1), y.flatten())


def batch_of(name: str) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return one batch for a model."""
    if name == "MLP":
        return torch.randn(64, 256), torch.randint(0, 10, (64,))
    if name == "CNN":
        return torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    return torch.randint(0, 1000, (8, 32)), torch.randint(0, 1000, (8, 32))


MODELS: Dict[str, Callable[[], nn.Module]] = {"MLP": Mlp, "CNN": Cnn, "transformer": Transformer}


def eager_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], Any]:
    """Return one step of plain PyTorch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        model(x, y).backward()
        optimizer.step()

    return step


def wrapped_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], Any]:
    """Return one call of the wrapped model, which has been compiled."""
    options = poptorch.Options().showCompilationProgressBar(False)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9))
    executor(x, y)
    inductor.wait()
    return lambda: executor(x, y)


def times(count: int, step: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(count):
            step()

    return run


def training(title: str, name: str, aim: float, least: Optional[Callable[[], Any]] = None) -> Measure:
    x, y = batch_of(name)
    ours, theirs = (times(10, make(MODELS[name](), x, y)) for make in (wrapped_step, eager_step))
    return ratio(title, ours, theirs, aim, 10, 21, least=None if least is None else times(10, least))


def inference(title: str, name: str) -> Measure:
    (x, y), model = batch_of(name), MODELS[name]()
    model.eval()
    executor = poptorch.inferenceModel(model, poptorch.Options().showCompilationProgressBar(False))

    def eager() -> None:
        with torch.no_grad():
            model(x, y)

    def operators() -> None:
        # For PopTorch, no trace of a layer has PyTorch's one operator for the whole of it.
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with torch.no_grad():
                result = model(x, y)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
        look_at_range(x, y)
        result.clone()

    works = [times(20, work) for work in (lambda: executor(x, y), eager, operators)]
    return ratio(title, works[0], works[1], 1.0, 20, 21, least=works[2])


def least_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """Return a function that computes the matrix products and convolutions of a training step, and its update."""
    found = Products()
    with found:
        loss = model(x, y)
        loss.backward()
    weights = [parameter.detach() for parameter in model.parameters()]
    gradients = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in model.parameters()]
    velocities = list(map(torch.zeros_like, weights))
    numbers = {"lr": 1e-3, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0}
    places = {weight.shape: place for place, weight in enumerate(weights)}

    def run() -> None:
        look_at_range(x, y)
        with torch.no_grad():
            made = list(gradients)
            for function, args, kwargs in found.calls:
                results = function(*args, **kwargs)
                for result in results if isinstance(results, tuple) else (results,):
                    if result is not None and result.shape in places:  # it stays until the update
                        made[places[result.shape]] = result
            fused_sgd_(weights, made, velocities, **numbers, nesterov=False, maximize=False, is_first_step=False)
            loss.clone()

    return run


def look_at_range(*batch: torch.Tensor) -> None:
    """Find the least and the largest whole number of each tensor of a batch."""
    for given in batch:
        if given.dtype is torch.int64:
            list(map(int, torch.aminmax(given)))


class Products(TorchDispatchMode):
    """Records the calls of matrix products and convolutions."""

    NAMES = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "_scaled_dot_product")

    def __init__(self) -> None:
        super().__init__()
        self.calls: List[Tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__.startswith(self.NAMES):
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def flat_in_device_iterations() -> Iterator[Measure]:
    rows, width, total = 8, 256, 256
    ((x, y),) = batches(1, rows * total, width)

    def epoch(iterations: int) -> Callable[[], None]:
        executor = executor_of(perceptron(width, 4), options=poptorch.Options().deviceIterations(iterations))
        size = rows * iterations

        def run() -> None:
            for start in range(0, len(x), size):
                executor(x[start : start + size], y[start : start + size])

        return run

    single = epoch(1)
    for iterations in (16, 256):
        name = f"deviceIterations {iterations} / 1, time per micro-batch"
        yield ratio(name, epoch(iterations), single, 1.0, total)


def memory_in_a_process(parameters: int) -> Tuple[float, float]:
    command = [sys.executable, "-m", __name__, str(parameters)]
    resident, moments = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-2:]
    return float(resident), float(moments)


def memory(parameters: int) -> Tuple[float, float]:
    """Return the memory of training in units of the weights, and the part of Adam's state; in a process of its own."""
    width = 5000  # matrices so large that the allocator gives them back to the system when they are freed
    layers = [nn.Linear(width, width, bias=False) for _ in range(parameters // width**2)]
    model = nn.Sequential(*layers, _Loss())
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    before = _resident() - weights
    executor = poptorch.trainingModel(model, optimizer=poptorch.optim.Adam(model.parameters(), lr=1e-4))
    for _ in range(2):
        executor(torch.ones(1, width))
    moments = executor._executable.memory()["optimizer_state"]  # type: ignore[union-attr]
    return (_resident() - before) / weights, moments / weights


class _Loss(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(x, "mean")


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


if __name__ == "__main__":
    print(*memory(int(sys.argv[1])))
