"""Resources of a process, before and after thousands of models."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterable, Set, Tuple

import torch
from ignite.engine import Events
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ignite_ipu.emulator as poptorch
from ignite_ipu import IPUEvents, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.emulator.device import machine

_PAGE = os.sysconf("SC_PAGE_SIZE")


def in_use() -> Dict[str, int]:
    """Return counts of resources that a process can leak; memory in bytes."""
    gc.collect()
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "processes": len(_children()),
        "emulated IPUs": len(machine.machine().users()),
        "memory": int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE,
    }


def _shared_memory() -> Set[str]:
    return set(os.listdir("/dev/shm"))


def _left_in_shared_memory(before: Set[str], patience: float = 60.0) -> Set[str]:
    """Return the new files in shared memory that stay: that of other processes goes with them."""
    left, deadline = _shared_memory() - before, time.monotonic() + patience
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left &= _shared_memory()
    return left


def _children() -> Iterable[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def one_life(workers: int = 0) -> None:
    """Create a model, train it, evaluate it, and give everything back."""
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters())
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    evaluator = create_ipu_evaluator(model)
    data = TensorDataset(torch.randn(16, 8), torch.zeros(16, dtype=torch.long))
    trainer.run(DataLoader(data, batch_size=8, num_workers=workers))
    evaluator.run(DataLoader(data, batch_size=8))
    trainer.ipu.close()


def live_and_die(cycles: int, warm_up: int = 5) -> Tuple[Dict[str, int], Dict[str, int]]:
    """Return the resources in use after the warm-up and after all cycles."""
    for _ in range(warm_up):
        one_life()
    one_life(workers=1)
    before = in_use()
    for number in range(cycles):
        one_life(workers=1 if number % 100 == 50 else 0)
    return before, in_use()


def check_no_leak(cycles: int, warm_up: int = 5, bytes_per_cycle: int = 4096) -> str:
    """Fail if a cycle leaves anything behind; returns the measurements.

    Args:
        cycles: How many.
        warm_up: Cycles before measuring: allocators and caches grow at first.
        bytes_per_cycle: Memory growth that counts as none; a leaked model would be ten times this.
    """
    shared_memory = _shared_memory()
    before, after = live_and_die(cycles, warm_up)
    growth = after.pop("memory") - before.pop("memory")
    assert after == before, f"left behind after {cycles} cycles: {before} became {after}"
    left = _left_in_shared_memory(shared_memory)
    assert not left, f"left in shared memory after {cycles} cycles: {sorted(left)}"
    allowed = bytes_per_cycle * cycles + (4 << 20)
    assert growth <= allowed, f"{growth} bytes more after {cycles} cycles ({growth / cycles:.0f} each)"
    return f"{cycles} cycles: {growth / cycles:+.0f} bytes each, nothing else left"


EVENTS = (
    *(Events.STARTED, Events.EPOCH_STARTED, Events.GET_BATCH_STARTED, Events.GET_BATCH_COMPLETED),
    *(Events.ITERATION_STARTED, Events.ITERATION_COMPLETED, Events.EPOCH_COMPLETED, Events.COMPLETED),
    *(IPUEvents.COMPILE_STARTED, IPUEvents.COMPILE_COMPLETED, IPUEvents.DEVICE_ATTACHING, IPUEvents.DEVICE_ATTACHED),
    *(IPUEvents.OPTIMIZER_SENT, IPUEvents.WEIGHTS_TO_HOST, IPUEvents.WEIGHTS_TO_DEVICE),
)


class Injected(Exception):
    """Raised on purpose."""


def raise_at(event: Any, in_evaluation: bool = False) -> bool:
    """Raise in a handler of this event; True if it was reached. IPUs are free then, and the model works natively."""
    gc.collect()
    held = machine.machine().users()  # by other objects of this process
    torch.manual_seed(random.randrange(1000))
    model = nn.Sequential(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    evaluator = create_ipu_evaluator(model)
    data = DataLoader(TensorDataset(torch.randn(12, 4), torch.zeros(12, dtype=torch.long)), batch_size=4)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: optimizer.param_groups[0].update(lr=0.05))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(data))

    def fail() -> None:
        raise Injected

    (evaluator if in_evaluation else trainer).add_event_handler(event, fail)
    reached = False
    try:
        trainer.run(data, max_epochs=2)
    except Injected:
        reached = True
    if reached:
        assert machine.machine().users() == held, f"IPUs are held after an exception in {event}"
    model(torch.randn(2, 4)).sum().backward()
    trainer.ipu.close()
    optimizer.step()
    return reached


def contend(threads: int, rounds: int, ipus: int) -> Tuple[int, int]:
    """Let threads fight for fewer IPUs; returns how many runs there were and how often the machine was busy."""
    done, busy = [], []

    def work(number: int) -> None:
        for _ in range(rounds):
            executor = poptorch.inferenceModel(nn.Linear(3, 2).eval())
            try:
                executor(torch.randn(2, 3))
                done.append(number)
            except poptorch.Error as error:
                if "Failed to acquire" not in str(error):
                    raise
                busy.append(number)
            finally:
                executor.destroy()

    pool = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join(120)
        assert not thread.is_alive(), "a thread waits for ever"
    return len(done), len(busy)
