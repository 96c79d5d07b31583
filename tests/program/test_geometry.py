"""The batching arithmetic against brute force over lists of samples."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_ipu import backend
from ignite_ipu.program.geometry import BatchGeometry

poptorch = backend.poptorch()

small = st.integers(1, 4)
geometries = st.builds(
    BatchGeometry,
    micro_batch_size=small,
    device_iterations=small,
    gradient_accumulation=small,
    replication_factor=small,
)


def nested_rows(geometry: BatchGeometry) -> Dict[Any, List[int]]:
    """Deal the rows of one call out in the order [D][A][R][B]: the rows of each micro-batch by (d, a, r)."""
    samples = iter(range(10_000))
    return {
        (d, a, r): [next(samples) for _ in range(geometry.micro_batch_size)]
        for d in range(geometry.device_iterations)
        for a in range(geometry.gradient_accumulation)
        for r in range(geometry.replication_factor)
    }


def returned_rows(geometry: BatchGeometry, mode: str, period: int = 1) -> List[int]:
    """Return the rows of the inputs that the rows of an output belong to."""
    size = geometry.micro_batch_size
    return [block * size + row for block in geometry.returned_micro_batches(mode, period) for row in range(size)]


def test_worked_example() -> None:
    """D=2, A=3, R=2, B=4: 48 rows a call, 24 an update, two updates; the guide's own example."""
    geometry = BatchGeometry(4, device_iterations=2, gradient_accumulation=3, replication_factor=2)
    assert geometry.global_batch_size == 48
    assert geometry.accumulated_batch_size == 24
    assert (geometry.updates_per_call, geometry.micro_batches) == (2, 12)
    assert returned_rows(geometry, "Final") == list(range(40, 48))
    assert returned_rows(geometry, "EveryN", 2) == list(range(24, 48))
    assert geometry.explain() == (
        "4 (micro-batch) x 3 (gradientAccumulation) x 2 (replicationFactor) = 24 samples per weight update; "
        "x 2 (deviceIterations) = 48 samples per device call"
    )


@given(geometries, st.data())
def test_returned_rows_are_those_of_the_micro_batches_kept(geometry: BatchGeometry, data: st.DataObject) -> None:
    """Labels of these rows belong to the micro-batches each output mode keeps, in its order."""
    dealt = nested_rows(geometry)
    last_d, last_a = geometry.device_iterations - 1, geometry.gradient_accumulation - 1
    divisors = [n for n in range(1, geometry.device_iterations + 1) if geometry.device_iterations % n == 0]
    period = data.draw(st.sampled_from(divisors))
    kept = {
        "All": lambda d, a: True,
        "Final": lambda d, a: d == last_d and a == last_a,
        "EveryN": lambda d, a: (d + 1) % period == 0,
    }
    for mode, keeps in kept.items():
        expected = [row for (d, a, _), rows in dealt.items() if keeps(d, a) for row in rows]
        assert returned_rows(geometry, mode, period) == expected


def test_processes_share_an_update() -> None:
    """Each has half of its samples; epochs are counted by each process for its own share of the data."""
    options = poptorch.Options().deviceIterations(3)
    options.Training.gradientAccumulation(8)
    options.Distributed.configureProcessId(1, 2)
    geometry = BatchGeometry.from_options(options, 2)
    assert (geometry.accumulated_batch_size, geometry.update_batch_size, geometry.global_batch_size) == (16, 32, 48)
    assert geometry.explain() == (
        "2 (micro-batch) x 8 (gradientAccumulation) x 1 (replicationFactor) x 2 (processes) = 32 samples per weight "
        "update; x 3 (deviceIterations) = 96 samples per device call, 48 of them in each process"
    )
    assert geometry.explain_epoch(100).startswith("100 samples of this process / 48 per device call = 2 steps")


@given(geometries, st.integers(0, 500))
def test_epoch_arithmetic_counts_samples(geometry: BatchGeometry, samples: int) -> None:
    """Steps, dropped and padded samples agree with cutting a list of samples into calls."""
    size = geometry.global_batch_size
    calls = [list(range(samples))[start : start + size] for start in range(0, samples, size)]
    full = [call for call in calls if len(call) == size]
    assert geometry.steps_per_epoch(samples) == len(full)
    assert geometry.steps_per_epoch(samples, drop_last=False) == len(calls)
    assert geometry.samples_dropped(samples) == samples - sum(map(len, full))
    assert geometry.samples_padded(samples) == len(calls) * size - samples


def test_replicas_of_a_group_share_their_input() -> None:
    """With groups of 2, four replicas read two micro-batches at a time, and outputs name them twice."""
    geometry = BatchGeometry(3, replication_factor=4, input_group_size=2)
    assert geometry.global_batch_size == 6 and geometry.micro_batches == 4
    assert geometry.returned_micro_batches("All") == [0, 0, 1, 1]
    assert "in groups of 2" in geometry.explain()


@pytest.mark.parametrize("mode", ["Sum", "Default"])
def test_modes_without_rows_of_their_own_are_refused(mode: str) -> None:
    """A sum over micro-batches has no labels."""
    with pytest.raises(ValueError, match=f"Output mode {mode} returns the outputs of no particular micro-batch"):
        BatchGeometry(1).returned_micro_batches(mode)


@pytest.mark.parametrize("value", [0, -1, 2.0, True])
def test_factors_are_positive_integers(value: Any) -> None:
    """A factor that is no positive integer is refused by name and value."""
    with pytest.raises(ValueError, match=rf"device_iterations must be a positive integer, got {value}"):
        BatchGeometry(1, device_iterations=value)


def test_explain_epoch() -> None:
    """The epoch's arithmetic names the dropped samples, or the length of the last call."""
    geometry = BatchGeometry(4, device_iterations=2)
    assert geometry.explain_epoch(20) == "20 samples / 8 per device call = 2 steps per epoch, 4 samples dropped"
    assert geometry.explain_epoch(20, drop_last=False) == (
        "20 samples / 8 per device call = 3 steps per epoch, the last with 4 samples"
    )
    assert (geometry.updates_per_epoch(21), geometry.updates_per_epoch(21, drop_last=False)) == (4, 4 + 2)
