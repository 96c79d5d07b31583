"""What capturing a step costs: an accelerate loop against the same loop written for PopTorch, on the emulator.

Run `python -m tests.benchmarks accelerate`. Both loops run in turns on the same batches; the ratio is the median over
the rounds. Where in memory a loop's tensors lie changes the time of its steps by several per cent, so both are made
anew several times. The middle row's width is the one whose steps take about 5 ms on this machine. The second table
holds the cost of one captured iteration apart from the device call, for models of growing depth. All times are
processor time of the one thread that works, so that what else runs on the machine counts little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Callable, Dict, List, Tuple
from unittest import mock

import torch
import torch.nn.functional as F
from accelerate.state import AcceleratorState, GradientState
from torch import nn

from ignite_ipu import IPUAccelerator, backend

Batch = Tuple[torch.Tensor, torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fresh", type=int, default=7, help="how often both loops are made anew")
    parser.add_argument("--rounds", type=int, default=9, help="rounds for each two loops")
    parser.add_argument("--steps", type=int, default=20, help="steps per round")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'width':>6}{'PopTorch':>12}{'captured':>12}{'ratio':>8}   milliseconds per step")
    for width in (256, width_for(5e-3), 1024):
        theirs, ours, ratio = compare(width, arguments.fresh, arguments.rounds, arguments.steps)
        print(f"{width:6}{theirs * 1e3:12.2f}{ours * 1e3:12.2f}{ratio:8.3f}")
    print(f"\n{'layers':>6}{'weights':>9}   microseconds per captured iteration, without the device call")
    for depth in (2, 50, 200, 500):
        print(f"{depth:6}{2 * depth + 2:9}{overhead(depth, arguments.steps * 5) * 1e6:12.0f}")


def network(width: int, depth: int = 3) -> nn.Module:
    torch.manual_seed(0)
    layers: List[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def batches(width: int, count: int) -> List[Batch]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(64, width, generator=generator), torch.randint(0, 10, (64,), generator=generator))
        for _ in range(count)
    ]


def captured_loop(width: int, depth: int = 3) -> Callable[[List[Batch]], None]:
    """Return one pass of an accelerate loop over batches."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = IPUAccelerator()
    model = network(width, depth)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    model.train()

    def run(data: List[Batch]) -> None:
        for x, y in data:
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            loss.item()

    return run


def poptorch_loop(width: int) -> Callable[[List[Batch]], None]:
    """Return one pass of a loop over an executor."""
    poptorch = backend.poptorch()

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = network(width)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return poptorch.identity_loss(F.cross_entropy(self.model(x), y), reduction="none")

    module = WithLoss()
    optimizer = poptorch.optim.SGD(module.parameters(), lr=1e-3)
    executor = poptorch.trainingModel(module, options=poptorch.Options(), optimizer=optimizer)

    def run(data: List[Batch]) -> None:
        for x, y in data:
            executor(x, y).item()

    return run


def width_for(wanted: float) -> int:
    """Return the width whose step takes closest to this many seconds on this machine, without capturing."""
    taken: Dict[int, List[float]] = {width: [] for width in range(448, 801, 32)}
    for width in [*taken] * 3:
        loop, data = poptorch_loop(width), batches(width, 20)
        taken[width].append(statistics.median([seconds(loop, data) / len(data) for _ in range(9)][2:]))
    return min(taken, key=lambda width: abs(statistics.median(taken[width]) - wanted))


def compare(width: int, fresh: int, rounds: int, steps: int) -> Tuple[float, float, float]:
    """Return the median seconds per step of both loops, and the median of their ratios."""
    data = batches(width, steps)
    times: List[Tuple[float, ...]] = []
    for _ in range(fresh):
        loops = (poptorch_loop(width), captured_loop(width))
        times += [tuple([seconds(loop, data) / steps for loop in loops]) for _ in range(rounds + 2)][2:]
    theirs, ours = zip(*times)
    return statistics.median(theirs), statistics.median(ours), statistics.median(b / a for a, b in times)


def overhead(depth: int, steps: int) -> float:
    """Return the median seconds of one captured iteration whose device call takes no time."""
    width = 8
    loop, data = captured_loop(width, depth), batches(width, 1)
    loop(data)
    output = torch.zeros(())
    with mock.patch.object(backend.poptorch().PoplarExecutor, "__call__", return_value=output):
        return statistics.median(seconds(loop, data) for _ in range(steps))


def seconds(work: Callable[[List[Batch]], None], data: List[Batch]) -> float:
    start = time.thread_time()
    work(data)
    return time.thread_time() - start


if __name__ == "__main__":
    main()
