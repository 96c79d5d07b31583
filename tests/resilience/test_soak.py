"""A short version of the hour-long run."""

from __future__ import annotations

import pytest

from tests.resilience.soak import Sample, check_flat, soak


def test_memory_stays_flat():
    """While training with evaluations, checkpoints and faults."""
    samples = soak(4.0, samples=8)
    assert len(samples) >= 6 and samples[-1].iterations > 50


def test_a_leak_would_be_noticed():
    with pytest.raises(AssertionError, match="memory grows"):
        check_flat([Sample(n, n, n << 20) for n in range(20)])
