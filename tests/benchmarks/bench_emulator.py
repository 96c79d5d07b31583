"""A wrapped model's time over plain eager PyTorch's, with and without torch.compile, and how much memory weights take.

Run `python tests/benchmarks/bench_emulator.py`; `--compile` adds the column of torch.compile, which takes minutes,
`--memory` measures a model of 100 million parameters in a process of its own, `--faults` what it brings that freed
memory is kept. Ratios below 1 mean that the emulator is faster. The eager side does what one training call does:
forward, backward, and the same optimizer's update. Both run in one thread, whose CPU time is compared, so that other
processes disturb less; "first" is wall-clock time.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Tuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

import ignite_ipu.emulator as poptorch

REPEATS = 41


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


def wrapped_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Tuple[Callable[[], Any], float]:
    """Return one call of the wrapped model, and the seconds until its first result was there."""
    options = poptorch.Options().showCompilationProgressBar(False)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9))
    start = time.perf_counter()
    executor(x, y)
    return lambda: executor(x, y), time.perf_counter() - start


def inference_steps(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Tuple[Callable[[], Any], Callable[[], Any]]:
    """Return one evaluation by plain PyTorch and one by the wrapped model."""
    model.eval()
    executor = poptorch.inferenceModel(model, poptorch.Options().showCompilationProgressBar(False))

    def eager() -> None:
        with torch.no_grad():
            model(x, y)

    return eager, lambda: executor(x, y)


def ratio(ours: Callable[[], Any], theirs: Callable[[], Any]) -> float:
    """Return the median of the ratios of times taken in turns, so that whatever else the machine does hits both."""
    for step in (ours, theirs):
        for _ in range(3):
            step()
    found = []
    for repeat in range(REPEATS):
        times = {}
        for step in (ours, theirs) if repeat % 2 else (theirs, ours):
            start = time.thread_time()
            for _ in range(3):
                step()
            times[step] = time.thread_time() - start
        found.append(times[ours] / times[theirs])
    return statistics.median(found)


def compare(name: str, with_compile: bool) -> str:
    """Return a row of the table."""
    x, y = batch_of(name)
    training, first = wrapped_step(MODELS[name](), x, y)
    row = f"{name:<12} {ratio(training, eager_step(MODELS[name](), x, y)):>9.2f}"
    eager, wrapped = inference_steps(MODELS[name](), x, y)
    row += f" {ratio(wrapped, eager):>10.2f} {first:>10.2f}"
    if with_compile:
        os.environ["IGNITE_IPU_EMULATOR_COMPILE"] = "inductor"
        training, first = wrapped_step(MODELS[name](), x, y)
        row += f" | {ratio(training, eager_step(MODELS[name](), x, y)):>8.2f} {first:>10.1f}"
        eager, wrapped = inference_steps(MODELS[name](), x, y)
        start = time.perf_counter()
        wrapped()
        first = time.perf_counter() - start
        row += f" {ratio(wrapped, eager):>10.2f} {first:>10.1f}"
        del os.environ["IGNITE_IPU_EMULATOR_COMPILE"]
    return row


def memory(parameters: int) -> None:
    """Print what one training process takes, in units of the weights: at its peak, and at rest."""
    width = 5000  # matrices so large that the allocator gives them back to the system when they are freed
    layers = [nn.Linear(width, width, bias=False) for _ in range(parameters // width**2)]
    model = nn.Sequential(*layers, _Loss())
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    before = _resident() - weights
    executor = poptorch.trainingModel(model, optimizer=poptorch.optim.Adam(model.parameters(), lr=1e-4))
    for _ in range(2):
        executor(torch.ones(1, width))
    moments = executor._program.memory()["optimizer_state"]  # type: ignore[union-attr]
    resident = _resident() - before
    print(
        f"{weights // 4:,} parameters: host and device weights {(resident - moments) / weights:.2f} x, Adam's state "
        f"{moments / weights:.2f} x, together {resident / weights:.2f} x the weights"
    )


def faults(width: int, keep: bool) -> None:
    """Print what a step takes when the C library keeps the memory that it frees, or does not."""
    if not keep:
        mock.patch("ignite_ipu.emulator.runtime.executable.keep_freed_memory").start()
    x, y = torch.randn(64, width), torch.randint(0, 10, (64,))
    layers = [part for _ in range(3) for part in (nn.Linear(width, width), nn.ReLU())]
    step, _ = wrapped_step(_WithLoss(nn.Sequential(*layers, nn.Linear(width, 10))), x, y)
    for _ in range(5):
        step()
    count, start = _faults(), time.thread_time()
    for _ in range(100):
        step()
    taken, count = (time.thread_time() - start) * 10, (_faults() - count) // 100
    print(f"width {width}, {'kept' if keep else 'not kept':<9}{taken:8.2f} ms {count:8} page faults a step")


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class _WithLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(x), y)


class _Loss(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(x, "mean")


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def main() -> None:
    """Print the tables that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--compile", action="store_true", help="add torch.compile")
    parser.add_argument("--memory", action="store_true", help="measure 100 million parameters")
    parser.add_argument("--faults", action="store_true", help="measure the page faults of steps")
    parser.add_argument("--only-faults", type=int, nargs=2, metavar=("WIDTH", "KEEP"), help=argparse.SUPPRESS)
    parser.add_argument("--only-memory", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.only_memory:
        memory(args.only_memory)
        return
    if args.only_faults:
        faults(args.only_faults[0], bool(args.only_faults[1]))
        return
    columns = f"{'training':>9} {'inference':>10} {'first (s)':>10}"
    compiled = f" | {'training':>8} {'first (s)':>10} {'inference':>10} {'first (s)':>10}"
    if args.compile:
        print(f"{'':<12} {'operators':^31} | torch.compile")
    print(f"{'model':<12} {columns}" + (compiled if args.compile else ""))
    for name in MODELS:
        print(compare(name, args.compile), flush=True)
    if args.memory:
        subprocess.run([sys.executable, __file__, "--only-memory", "100000000"], check=True)
    if args.faults:
        for width in (640, 1024):
            for keep in ("0", "1") * 3:
                subprocess.run([sys.executable, __file__, "--only-faults", str(width), keep], check=True)


if __name__ == "__main__":
    main()
