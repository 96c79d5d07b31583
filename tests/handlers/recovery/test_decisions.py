"""The action after a fault, by PopTorch's message and by earlier attempts."""

from __future__ import annotations

import pytest

import ignite_ipu.emulator as poptorch
from ignite_ipu.handlers.recovery.decisions import decide


@pytest.mark.parametrize(
    ("needed", "attempt", "has_reset", "action", "wait"),
    [
        ("IPU_RESET", 1, False, "retry", 0.5),
        ("IPU_RESET", 3, False, "retry", 2.0),
        ("IPU_RESET", 9, False, "retry", 60.0),
        ("IPU_RESET", 11, False, "stop", 0.0),
        ("PARTITION_RESET", 1, False, "exit", 0.0),
        ("PARTITION_RESET", 2, True, "reset", 1.0),
        ("FULL_RESET", 11, True, "stop", 0.0),
        (None, 1, True, "stop", 0.0),
    ],
)
def test_every_fault_has_its_action(needed, attempt, has_reset, action, wait):
    """Waits double from half a second up to a minute; ten retries of one call are made."""
    error = poptorch.Fault(needed, "a double bit error").error()
    decision = decide(error, 7, attempt, retries=10, backoff=0.5, has_reset=has_reset)
    assert (decision.action, decision.wait) == (action, wait)
    assert (decision.iteration, decision.attempt, decision.recovery_action) == (7, attempt, needed)
    assert "a double bit error" in decision.error
