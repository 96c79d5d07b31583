"""A long run at full speed, with evaluations, checkpoints and faults: memory must stay flat."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import List, NamedTuple

from ignite.engine import Events

import ignite_ipu.emulator as poptorch
from ignite_ipu.handlers import Recovery
from tests.resilience.resources import in_use
from tests.resilience.training import Run


class Sample(NamedTuple):
    seconds: float
    iterations: int
    memory: int


def soak(seconds: float, samples: int = 20, seed: int = 0, iterations: int = 150) -> List[Sample]:
    """Run for so long, and so many iterations; returns the memory in use at equal intervals, after a tenth as warm-up.

    Raises:
        AssertionError: Memory grows, or something else is left behind.
    """
    drawn = random.Random(seed)
    taken: List[Sample] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = Run(patience=10**9)
        recovery = Recovery(folder, run.others, every=20, backoff=0.0, reset=lambda action: None)
        recovery.attach(run.trainer)
        run.checkpoint(folder, every=50, kept=2)  # with None, Ignite's handler keeps every name for ever
        started = time.monotonic()

        def after_epoch() -> None:
            run.log.clear()
            for path in sorted(folder.glob("*.pt"), key=lambda path: path.stat().st_mtime_ns)[:-2]:
                path.unlink()
            passed = time.monotonic() - started
            # A busy machine may need longer for them than it has time.
            progress = min(passed / seconds, run.trainer.state.iteration / iterations)
            if progress >= 0.1 + 0.9 * len(taken) / samples:
                taken.append(Sample(passed, run.trainer.state.iteration, in_use()["memory"]))
            if progress >= 1.0:
                run.trainer.terminate()

        run.trainer.add_event_handler(Events.EPOCH_COMPLETED, after_epoch)
        faults = {call: poptorch.Fault(drawn.choice(["IPU_RESET", "FULL_RESET"])) for call in _some_calls(drawn)}
        with poptorch.inject_faults(faults):
            run.train(epochs=10**9)
        run.trainer.ipu.close()
    assert recovery.status.recoveries > 0
    check_flat(taken)
    return taken


def check_flat(samples: List[Sample], allowed: int = 4 << 20) -> None:
    """Fail when the second half needs more memory than the first, beyond the tolerance for an allocator."""
    half = len(samples) // 2
    first, second = (max(sample.memory for sample in part) for part in (samples[:half], samples[half:]))
    assert second - first <= allowed, f"memory grows: {first} bytes at most, then {second}: {samples}"


def _some_calls(drawn: random.Random) -> List[int]:
    """Calls to fail: some while the last fault is being repaired, but no more of these than `Recovery` retries."""
    calls, call = [], 0
    while len(calls) < 100_000:
        repairing = len(calls) % 4 == 3
        call += drawn.randint(5, 20) if repairing else drawn.randint(25, 80)
        calls.append(call)
    return calls
