"""What one optimizer update costs: the emulator's device against torch.optim with foreach=True.

Run `python tests/benchmarks/bench_optimizers.py`. Each row times both in turns and prints the median of the ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Callable, Dict, List, Tuple

import torch

from ignite_ipu.emulator.optim.description import describe
from ignite_ipu.emulator.optim.device.optimizer import DeviceOptimizer

Make = Callable[[List[torch.nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS: Dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-3, foreach=True),
    "SGD, momentum and decay": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, weight_decay=1e-4, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, foreach=True),
    "RMSprop, centered": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.9, foreach=True),
}
SIZES: Dict[str, Tuple[int, ...]] = {"tiny (8)": (8,), "64 x 64": (64, 64), "512 x 512": (512, 512)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=int, default=100, help="weights per model")
    parser.add_argument("--rounds", type=int, default=30, help="rounds per row")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{arguments.weights} weights; microseconds per update")
    print(f"{'optimizer':26}{'each weight':>13}{'torch':>10}{'device':>10}{'ratio':>8}")
    for name, make in OPTIMIZERS.items():
        for size, shape in SIZES.items():
            theirs, ours, ratio = compare(make, shape, arguments.weights, arguments.rounds)
            print(f"{name:26}{size:>13}{theirs * 1e6:10.0f}{ours * 1e6:10.0f}{ratio:8.2f}")


def compare(make: Make, shape: Tuple[int, ...], count: int, rounds: int) -> Tuple[float, float, float]:
    """Return the median seconds of one update in torch and on the device, and the median ratio of the two."""
    parameters = [torch.nn.Parameter(torch.randn(shape)) for _ in range(count)]
    grads = [torch.randn(shape) for _ in range(count)]
    for parameter, grad in zip(parameters, grads):
        parameter.grad = grad
    optimizer = make(parameters)
    weights = {f"w{index}": parameter.detach().clone() for index, parameter in enumerate(parameters)}
    device = DeviceOptimizer(describe(optimizer), weights, {name: 0 for name in weights})
    times = []
    for _ in range(rounds + 3):
        times.append((seconds(optimizer.step), seconds(lambda: device.update(grads))))
    times = times[3:]  # first rounds allocate
    theirs, ours = zip(*times)
    return statistics.median(theirs), statistics.median(ours), statistics.median(b / a for a, b in times)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
