"""The cost of parity of scripts: two loops under a recorder, on the host and on the device, against the same alone.

The limit is the copies alone: after each update the newest weights and optimizer state are brought from the device, and
those of either side are kept in one tensor each until the end of the loop, as a recorder has to keep them.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Callable, Iterator, List, Tuple

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ignite_ipu import ipu_prepare
from ignite_ipu.optimizers.linked_optimizer import newest_state
from ignite_ipu.optimizers.step_hooks import CallHook
from ignite_ipu.parity.recorder import Recorder
from ignite_ipu.program.tensors.raw import bring_newest
from ignite_ipu.torch_names.lists import flatten_tensors
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass
from tests.benchmarks.measures import Measure, ratio_of_fresh
from tests.benchmarks.models import Batch, batches, perceptron, train_on, width_for

ROWS = 256
LAYERS, WIDTH = 200, 64
SCRIPT = """
import torch
from torch import nn
layers = nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18432, 10)
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for _ in range(20):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.randn(32, 3, 28, 28)), torch.randint(0, 10, (32,)))
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def measures() -> Iterator[Measure]:
    """Yield the rows of the table."""
    yield whole_command()
    width = width_for(20e-3, ROWS)
    for name, layers, size in (("step of 20 ms", 3, width), (f"{LAYERS} layers", LAYERS, WIDTH)):
        data = batches(4, ROWS, size)
        yield ratio_of_fresh(
            f"two runs recorded by parity / alone, {name}",
            lambda data=data, size=size, layers=layers: both(size, layers, data),
            1.3,
            len(data),
            fresh=3,
        )


def whole_command() -> Measure:
    """Measure `ignite-ipu parity` of a script with 20 updates against its two runs, processor time of all processes."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT)

        def called(*words: str) -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *words], check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        pairs = []
        for _ in range(2):
            compared = called("-m", "ignite_ipu", "parity", str(script), "--updates", "20")
            pairs.append((compared, called(str(script)) + called("-m", "ignite_ipu", "run", str(script))))
    each = " / ".join(f"{statistics.median(side):.3g}" for side in zip(*pairs))
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    return Measure("ignite-ipu parity, 20 updates / the two runs", ratio, 1.3, both_sides=f"{each} s")


class Copies(CallHook):
    """A hook that keeps the weights and the optimizer's state after each update."""

    def __init__(self) -> None:
        self.kept: List[Tuple[torch.Tensor, torch.Tensor]] = []

    def of_call(self, optimizer: torch.optim.Optimizer, updates: int) -> None:
        weights = [each for group in optimizer.param_groups for each in group["params"]]
        bring_newest(weights[0])
        states = [value for _, entries in newest_state(optimizer) for value in entries.values()]
        with torch.no_grad(), DisableTorchFunctionSubclass():
            self.kept.append((flatten_tensors(weights), flatten_tensors(states)))


def both(width: int, layers: int, data: List[Batch]) -> Tuple[Callable[[], None], ...]:
    """Return a pass of a loop on the host and on the device under a recorder, the same pass alone, and with copies."""
    loops = [loop(width, layers, data, captured) for captured in (False, True)]

    def alone() -> None:
        for run in loops:
            run()

    def recorded() -> None:
        for run in loops:
            recorder = Recorder(len(data))
            recorder.start()
            try:
                run()
            finally:
                recorder.stop()

    def copied() -> None:
        for run in loops:
            hook = register_optimizer_step_post_hook(Copies())
            try:
                run()
            finally:
                hook.remove()

    return recorded, alone, copied


def loop(width: int, layers: int, data: List[Batch], captured: bool) -> Callable[[], None]:
    """Return a pass of a loop over batches."""
    model: nn.Module = perceptron(width, layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, foreach=True)
    if captured:
        ipu_prepare(optimizer, model)
    model.train()

    def run() -> None:
        list(model.named_parameters())  # by which the recorder knows the model
        train_on(data, model, optimizer)

    return run
