"""Processes that train one model, of which one is killed: the others name it and end within seconds.

`python -m tests.resilience.instances 100` kills that many, at random moments.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from tests.together import running

MOST_SECONDS = 10.0


def train(ready: str) -> None:
    """Train for ever, in a loop that reads values, gathers, evaluates and saves."""
    from ignite_ipu import IPUAccelerator, IPUConfig

    accelerator = IPUAccelerator(config=IPUConfig(update="auto"), cpu=True)
    Path(ready, str(accelerator.process_index)).touch()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    step = 0
    while True:
        step += 1
        model.train()
        x = torch.randn(6, 4)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 0:
            accelerator.gather(loss.detach())
        if step % 5 == 0:
            model.eval()
            with torch.no_grad():
                model(x)
            accelerator.save_state(ready + "/state")
            accelerator.wait_for_everyone()


def kill_one(drawn: random.Random) -> float:
    """Kill one of some processes at a random moment; return after how many seconds the others had ended.

    Raises:
        AssertionError: One of them is left, or does not name the one that was killed.
    """
    count = drawn.choice([2, 2, 3])
    with tempfile.TemporaryDirectory() as folder, running(train, folder, count=count) as processes:
        while any(not Path(folder, str(rank)).exists() for rank in range(count)):
            assert not processes.ended(0), processes.result(0)
            time.sleep(0.01)
        time.sleep(drawn.random() * 3.0)
        victim = drawn.randrange(count)
        processes.kill(victim)
        started = time.monotonic()
        while not processes.ended():
            assert time.monotonic() - started < MOST_SECONDS, "a process waits for the killed one"
            time.sleep(0.02)
        took = time.monotonic() - started
        for rank in range(count):
            text = str(processes.result(rank))
            # The others may hear of a process that has ended because of the killed one.
            named = "has ended" in text and "process " in text
            assert rank == victim or named, f"process {rank}, of {victim} killed, says:\n{text}"
        return took


def main(kills: int, seed: int = 0) -> None:
    """Kill as many, and print what took longest."""
    import ignite_ipu.deferred.accelerator  # noqa: F401  # once for all processes

    drawn = random.Random(seed)
    slowest = 0.0
    for number in range(1, kills + 1):
        slowest = max(slowest, kill_one(drawn))
        if number % 10 == 0:
            print(f"{number} killed; the others ended within {slowest:.1f} s", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
