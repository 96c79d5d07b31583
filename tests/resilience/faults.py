"""Device faults at every call of a run, and at random ones: the run must not be able to tell."""

from __future__ import annotations

import random
import tempfile
from typing import Any, Dict, Iterable, List, Tuple

import ignite_ipu.emulator as poptorch
from ignite_ipu.handlers import Recovery
from tests.resilience.training import CALLS_PER_EPOCH, EVALUATION_CALLS, Run

ACTIONS = ("IPU_RESET", "LINK_RESET", "PARTITION_RESET", "FULL_RESET")
EPOCHS = 2
CALLS = EPOCHS * (CALLS_PER_EPOCH + EVALUATION_CALLS)


def run_with(faults: Dict[int, str], every: int = 3, optimizer: str = "Adam") -> Tuple[Any, Any, int]:
    """Run with faults at these calls; returns the run's result and log, and how many faults there were."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(optimizer=optimizer)
        recovery = Recovery(
            folder,
            {"scheduler": run.scheduler},
            every=every,
            retries=len(faults) + 1,
            backoff=0.0,
            reset=lambda action: None,
        )
        recovery.attach(run.trainer)
        with poptorch.inject_faults({call: poptorch.Fault(action) for call, action in faults.items()}):
            run.train(EPOCHS)
        result = run.result()
        run.trainer.ipu.close()
    assert recovery.status.faults == len(recovery.status.decisions)
    return result, run.log, recovery.status.faults


def every_call(every: int, optimizer: str, calls: Iterable[int] = range(CALLS)) -> int:
    """Break each call once; returns how many faults there were."""
    expected = run_with({}, every, optimizer)
    total = 0
    for call in calls:
        found = run_with({call: "IPU_RESET"}, every, optimizer)
        assert found[:2] == expected[:2], f"a fault at call {call} shows (every={every}, {optimizer})"
        assert found[2] == 1
        total += found[2]
    return total


def random_sequences(count: int, seed: int = 0) -> int:
    """Break several calls of each run, the repeated ones among them; returns how many faults there were."""
    drawn = random.Random(seed)
    expected: Dict[Tuple[int, str], Any] = {}
    total = 0
    for number in range(count):
        every, optimizer = drawn.choice([1, 2, 5, 50]), drawn.choice(["Adam", "AdamW", "SGD", "RMSprop"])
        if (every, optimizer) not in expected:
            expected[every, optimizer] = run_with({}, every, optimizer)[:2]
        calls: List[int] = drawn.sample(range(CALLS + 8), drawn.randint(2, 8))
        faults = {call: drawn.choice(ACTIONS) for call in calls}
        found = run_with(faults, every, optimizer)
        assert found[:2] == expected[every, optimizer], f"sequence {number} shows: {faults} ({every}, {optimizer})"
        total += found[2]
    return total
