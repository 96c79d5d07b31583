"""Device faults at every call of a run, and at random ones: the run must not be able to tell."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

import ignite_ipu.emulator as poptorch
from ignite_ipu.handlers import Recovery
from tests.resilience.training import CALLS_PER_EPOCH, EVALUATION_CALLS, Run

ACTIONS = ("IPU_RESET", "LINK_RESET", "PARTITION_RESET", "FULL_RESET")
EPOCHS = 2
CALLS = EPOCHS * (CALLS_PER_EPOCH + EVALUATION_CALLS)


def run_with(
    faults: Dict[int, str],
    every: int = 3,
    optimizer: str = "Adam",
    copies: Optional[Dict[int, str]] = None,
    share_ipus: bool = False,
) -> Tuple[Any, Any, int]:
    """Run with faults at these calls and copies; returns the run's result and log, and how many faults there were.

    Where copies fail, the run makes more kinds of them: it writes checkpoints, looks at weights, gives its IPUs back.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = Run(optimizer=optimizer, share_ipus=share_ipus)
        recovery = Recovery(
            folder,
            run.others,
            every=every,
            retries=len(faults) + len(copies or {}) + 1,
            backoff=0.0,
            reset=lambda action: None,
        )
        recovery.attach(run.trainer)
        if copies is not None:
            run.checkpoint(Path(folder), every=2)
            run.look_at_weights()
        with poptorch.inject_faults(_faults(faults), copies=_faults(copies or {})):
            run.train(EPOCHS)
            result = run.result() if copies is not None else {}
            run.trainer.ipu.close()
        result = result or run.result()
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


def every_copy(every: int, optimizer: str, step: int = 1, share_ipus: bool = False) -> int:
    """Break each copy between device and host once; returns how many faults there were."""
    expected = run_with({}, every, optimizer, {}, share_ipus)
    total, copy, unseen = 0, 0, 0
    while unseen < 4:  # then the run makes no copy with such a number; giving back an inference program needs no repair
        found = run_with({}, every, optimizer, {copy: ACTIONS[copy % len(ACTIONS)]}, share_ipus)
        assert found[:2] == expected[:2], f"a fault of copy {copy} shows (every={every}, {optimizer}, {share_ipus})"
        unseen = 0 if found[2] else unseen + 1
        total, copy = total + found[2], copy + step
    return total


def random_sequences(count: int, seed: int = 0) -> int:
    """Break several calls of each run, the repeated ones among them; returns how many faults there were."""
    drawn = random.Random(seed)
    expected: Dict[Tuple[int, str], Any] = {}
    total = 0
    for number in range(count):
        every, optimizer = drawn.choice([1, 2, 5, 50]), drawn.choice(["Adam", "AdamW", "SGD", "RMSprop"])
        if (every, optimizer) not in expected:
            expected[every, optimizer] = run_with({}, every, optimizer, {})[:2]
        calls: List[int] = drawn.sample(range(CALLS + 8), drawn.randint(2, 8))
        faults = {call: drawn.choice(ACTIONS) for call in calls}
        copies = {copy: drawn.choice(ACTIONS) for copy in drawn.sample(range(60), drawn.randint(0, 5))}
        found = run_with(faults, every, optimizer, copies)
        what = f"sequence {number} shows: calls {faults}, copies {copies} ({every}, {optimizer})"
        assert found[:2] == expected[every, optimizer], what
        total += found[2]
    return total


def _faults(actions: Dict[int, str]) -> Dict[int, poptorch.Fault]:
    # From every other one on, the device answers nothing more until its IPUs are given back.
    return {number: poptorch.Fault(action, lasting=number % 2 == 1) for number, action in actions.items()}
