"""A run with device faults is the run without them, bit for bit."""

from __future__ import annotations

import pytest

from tests.resilience.faults import CALLS, every_call, every_copy, random_sequences


@pytest.mark.parametrize("every", [1, 4])
def test_a_fault_at_any_call_does_not_show(every):
    """Weights, optimizer, random state, losses, learning rates and metrics are those of the fault-free run."""
    assert every_call(every, "Adam", range(every == 4, CALLS, 2)) > 0  # all calls, by turns


@pytest.mark.parametrize("share_ipus", [False, True])
def test_a_fault_of_any_copy_does_not_show(share_ipus):
    """Attaching, snapshots, checkpoints, evaluations, looks at weights, giving IPUs back: with every kind of reset."""
    assert every_copy(2, "Adam", step=7, share_ipus=share_ipus) >= 4


def test_several_faults_do_not_show():
    """In training, evaluation and the repetition itself, with every kind of reset and every optimizer."""
    assert random_sequences(4) > 6
