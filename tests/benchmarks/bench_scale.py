"""Growth of waiting times with a model's size, as the exponent of a power law: none may be above 1.

If plain PyTorch does the same, the excess of its own exponent over 1 is subtracted: a larger model leaves the
processor's caches. Memory is compared with plain PyTorch's.
`python -m tests.benchmarks.bench_scale 350` goes up to 350 M parameters, not 125 M.
"""

from __future__ import annotations

import gc
import math
import os
import resource
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import IPUAccelerator, create_ipu_evaluator, create_ipu_trainer, ipu_prepare
from ignite_ipu.deferred import captured
from tests.benchmarks.bench_imports import of_children
from tests.benchmarks.measures import Measure, Work, best_of, exponent, report, seconds
from tests.benchmarks.models import batches, perceptron, train_once

LAYERS = (10, 100, 300, 1000)
MILLIONS = (1, 8, 31, 125)
DEPTHS = (10, 100, 1000, 10_000)
REPLICAS = (1, 2, 4, 8, 16)
PROCESSES = (1, 2, 4, 8, 16)
SAMPLES = (10**3, 10**4, 10**5, 10**6)
FILES = (100, 1000, 10_000)
TOKENS = 64
PROGRAM = """
import torch
from torch import nn
from ignite.engine import create_supervised_trainer

class Net{0}(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x

def train{0}(loader):
    model = Net{0}().to("cuda")
    trainer = create_supervised_trainer(model, torch.optim.Adam(model.parameters()), nn.MSELoss(), device="cuda")
    trainer.run(loader, max_epochs=2)
"""


class Transformer(nn.Module):
    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def loss(predicted: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(predicted.flatten(0, 1), tokens.flatten())


def more() -> Iterator[Measure]:
    """Yield the rows of the table."""
    waits(lambda: perceptron(32, 5), 32)  # imports, and other work that is done once
    yield from growth("layers", LAYERS, [waits(partial(perceptron, 32, count), 32) for count in LAYERS])
    widths = [math.isqrt(10**6 * size // 5) for size in MILLIONS]
    yield from growth("M parameters", MILLIONS, [waits(partial(perceptron, width, 5), width) for width in widths])
    yield from captured_steps()
    yield from memory()
    yield from checks()


def growth(unit: str, sizes: Sequence[int], found: Sequence[Dict[str, Tuple[float, ...]]]) -> Iterator[Measure]:
    of = f"{', '.join(map(str, sizes))} {unit}"
    for name in found[0]:
        sides = list(zip(*(each[name] for each in found)))
        laws = [exponent(sizes, side) for side in sides]
        shown = "; plain ".join(" / ".join(f"{1e3 * value:.3g}" for value in side) for side in sides)
        yield Measure(
            f"growth of {name}, {of}",
            laws[0] - max([law - 1 for law in laws[1:] if law > 1], default=0),
            1,
            "",
            f"{shown} ms",
        )


def waits(make: Callable[[], nn.Module], width: int) -> Dict[str, Tuple[float, ...]]:
    """Return the processor seconds of the waiting times in training a model, and plain PyTorch's for the same."""
    model, (batch,) = make(), batches(1, 8, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    trainer, evaluator = create_ipu_trainer(model, optimizer, F.cross_entropy), create_ipu_evaluator(model)

    def train() -> None:
        trainer._process_function(trainer, batch)

    def evaluate() -> None:
        evaluator._process_function(evaluator, batch)

    def after_training(work: Work) -> float:
        train()
        return seconds(work)

    first = {"the first step": (seconds(train),), "the first evaluation": (seconds(evaluate),)}
    step = best_of(5, train)
    switch = min(after_training(evaluate) for _ in range(3))
    checkpoint = min(after_training(lambda: save(model, optimizer)) for _ in range(3))
    trainer.ipu.close()
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    plain = best_of(5, lambda: train_once(model, optimizer, *batch))
    saved = best_of(3, lambda: save(model, optimizer))
    again = {
        "a step": (step, plain),
        "an evaluation that takes weights over": (switch,),
        "a checkpoint": (checkpoint, saved),
    }
    return {**first, **again}


def captured_steps() -> Iterator[Measure]:
    """Yield how that grows which capturing adds to the device calls of a loop, with layers and with replicas."""
    for place, config in (("", {}), (" over 2 IPUs", {"pipeline": [-1, -1], "execution": "sharded"})):
        sizes = DEPTHS if not config else DEPTHS[:-1]
        added = [added_by_capture(count, config) for count in sizes]
        of = f"{', '.join(map(str, sizes))} layers{place}"
        yield _grown(f"growth of what capturing adds to a step, {of}", sizes, added, 0.2)
    shared = [added_by_capture(10, {"replication_factor": count}, REPLICAS[-1]) for count in REPLICAS]
    name = f"growth of what capturing adds to a step, {REPLICAS[-1]} micro-batches on {', '.join(map(str, REPLICAS))}"
    yield _grown(f"{name} replicas", REPLICAS, shared, 0.1)
    loaded = [step_of_a_loop(count) for count in SAMPLES]
    of = ", ".join(f"{count:,}" for count in SAMPLES)
    yield _grown(f"growth of a step of an accelerate loop, {of} samples", SAMPLES, loaded, 0.1)
    together = [step_in_processes(count) for count in PROCESSES]
    of = ", ".join(map(str, PROCESSES))
    yield _grown(f"growth of a process's step of an accelerate loop, {of} processes", PROCESSES, together, 1)


def step_of_a_loop(samples: int) -> float:
    """Return the processor seconds of a step of an accelerate loop over so many samples, loading included."""
    accelerator = IPUAccelerator()
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(10)))
    data = TensorDataset(torch.randn(samples, 4), torch.randint(0, 4, (samples,)))
    # The order of an epoch is drawn at its start, for all samples; it is no part of a step.
    loader = DataLoader(data, 2, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    rows = iter(loader)

    def step() -> None:
        x, y = next(rows)
        optimizer.zero_grad()
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()

    for _ in range(10):  # updates that a loop begins with are watched, and the first is compiled
        step()
    return best_of(40, step)


def step_in_processes(count: int) -> float:
    """Return a process's processor seconds of a step where so many processes train together."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    command = [*launcher, "-m", "tests.benchmarks.bench_scale", "process", "10000"]
    # Threads of one process would wait for each other on processors that other processes need.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout.split()[-1])


def added_by_capture(layers: int, config: Dict[str, Any], micro_batches: int = 1) -> float:
    """Return the processor seconds of an iteration without the device call, and without PyTorch's own `zero_grad`."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=1e-3), model, config=config)
    x, y = torch.randn(2, 4), torch.tensor([1, 2])
    called: List[float] = []

    def step() -> None:
        for _ in range(micro_batches):
            F.cross_entropy(model(x), y).backward()
        optimizer.step()

    def timed(executor: Any, *leaves: Any) -> Any:
        results: List[Any] = []
        called.append(seconds(lambda: results.append(call(executor, *leaves))))
        return results[0]

    found: List[float] = []
    step()
    loop = captured(model)
    assert loop is not None and loop.session.training is not None
    kind: Any = type(loop.session.training.executor)
    call = kind.__call__
    with mock.patch.object(kind, "__call__", timed):
        for _ in range(5):
            optimizer.zero_grad()
            found.append(seconds(step) - called[-1])
    return min(found)


def _grown(name: str, sizes: Sequence[int], values: Sequence[float], aim: float) -> Measure:
    shown = " / ".join(f"{1e3 * value:.3g}" for value in values)
    return Measure(name, exponent(sizes, values), aim, "", f"{shown} ms")


def save(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with tempfile.TemporaryDirectory() as folder:
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(states, Path(folder, "checkpoint.pt"))


def memory() -> Iterator[Measure]:
    """Yield the memory of AdamW's training of transformers, in processes of their own, and its peak."""
    sizes = ((256, 4, 8000), (384, 8, 13000), (768, 12, 26000))
    ours, theirs = ([held_by(kind, *size) for size in sizes] for kind in ("ours", "plain"))
    weights = [each[0] for each in ours]
    shown = " / ".join(f"{each[1] >> 20}" for each in ours)
    name = f"growth of memory held in training, {', '.join(f'{each / 1e6:.0f}' for each in weights)} M parameters"
    yield Measure(name, exponent(weights, [each[1] for each in ours]), 1, "", f"{shown} MiB")
    for place, what in ((1, "held"), (2, "at most")):
        mine, other = ours[-1][place], theirs[-1][place]
        times = f"{mine / weights[-1] / 4:.2f} / {other / weights[-1] / 4:.2f} times the weights"
        name = f"memory {what} in training {weights[-1] / 1e6:.0f} M parameters with AdamW / plain PyTorch"
        yield Measure(name, mine / other, 1.15, "", times)


def held_by(kind: str, *size: int) -> Tuple[int, int, int]:
    """Return the parameters of a transformer, and the bytes that training it holds, and held at most."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_scale", kind, *map(str, size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    parameters, held, most = map(int, done.stdout.split())
    return parameters, held, most


def hold(kind: str, width: int, layers: int, words: int) -> None:
    """Train for three steps, and print the result of `held_by`."""
    torch.set_num_threads(1)
    model = Transformer(width, layers, words)
    parameters = sum(each.numel() for each in model.parameters())
    tokens = torch.randint(0, words, (1, TOKENS))
    optimizer = torch.optim.AdamW(model.parameters())
    before = resident() - 4 * parameters
    trainer = create_ipu_trainer(model, optimizer, loss) if kind == "ours" else None
    for _ in range(3):
        if trainer is not None:
            trainer._process_function(trainer, (tokens, tokens))
        else:
            optimizer.zero_grad()
            loss(model(tokens), tokens).backward()
            optimizer.step()
    gc.collect()
    # Not the value of getrusage, which counts the parent's memory.
    (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    most = 1024 * int(peak.split()[1])
    print(parameters, resident() - before, most - before)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def checks() -> Iterator[Measure]:
    """Yield how long `check` takes for folders of programs."""
    taken: List[float] = []
    for count in FILES:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(count):
                package = Path(folder, f"package{number // 100}")
                package.mkdir(exist_ok=True)
                (package / f"program{number}.py").write_text(PROGRAM.format(number))
            command = [sys.executable, "-m", "ignite_ipu", "check", folder]
            taken.append(seconds(lambda: subprocess.run(command, stdout=subprocess.DEVNULL), of_children))  # noqa: B023
    shown = " / ".join(f"{1e3 * value:.3g}" for value in taken)
    yield Measure(f"growth of check, {', '.join(map(str, FILES))} files", exponent(FILES, taken), 1, "", f"{shown} ms")


if __name__ == "__main__":
    if sys.argv[1:2] == ["process"]:
        torch.set_num_threads(1)
        taken = step_of_a_loop(int(sys.argv[2]))
        if os.environ["RANK"] == "0":
            print(taken)
    elif len(sys.argv) > 2:
        hold(sys.argv[1], *map(int, sys.argv[2:]))
    else:
        torch.set_num_threads(1)
        MILLIONS = (*MILLIONS, *map(int, sys.argv[1:]))
        sys.exit(1 if report(more(), sys.stdout) else 0)
