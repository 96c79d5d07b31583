"""Processes that train one model, of which one is killed: the others name it and end within seconds."""

from __future__ import annotations

import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import List

import torch
from torch import nn

from tests.resilience.processes import Program
from tests.together import running

# A process that waits for a killed one does so for half an hour; a machine with other work takes its time.
MOST_SECONDS = 60.0


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


def kill_launched(drawn: random.Random) -> float:
    """Kill a process of a job of `ignite-ipu launch`, also before it trains; return how long the rest took to end.

    Raises:
        AssertionError: Something is left, or the launcher's report does not name the process.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = ["-m", "ignite_ipu", "launch", "--instances", "2", __file__, "train", folder]
        program = Program([sys.executable, *words])
        try:
            deadline = time.monotonic() + drawn.random() * 30
            while time.monotonic() < deadline or len(_instances(program)) < 2:
                time.sleep(0.05)
                assert time.monotonic() < deadline + 100, "the job does not start"
            victim = drawn.choice(_instances(program))
            program.kill(victim, signal.SIGKILL)
            took = program.wait_until_gone(most=MOST_SECONDS)
            assert f"(pid: {victim})" in program.errors(), program.errors()
            return took
        finally:
            program.close()


def _instances(program: Program) -> List[int]:
    """Return the processes that run the script, which launchers name in their arguments, too."""
    found = []
    for pid in program.processes():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"torch.distributed.run" not in words and b"launch" not in words:
            found.append(pid)
    return found


def kill_at_random(count: int, seed: int = 0) -> float:
    """Kill a process of so many jobs at random moments after they are connected; return the longest time to the end."""
    import ignite_ipu.deferred.accelerator  # noqa: F401  # once for all processes

    drawn = random.Random(seed)
    return max(kill_one(drawn) for _ in range(count))


def kill_launched_at_random(count: int) -> float:
    """Kill a process of so many jobs of `ignite-ipu launch` at any moment; return the longest time to the end."""
    return max(kill_launched(random.Random(seed)) for seed in range(count))


if __name__ == "__main__":
    train(sys.argv[2])
