"""The partition against every possible cutting."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignite_ipu.pipeline import PlanError, partition_chain
from ignite_ipu.pipeline.costs.partition import SpanSums, partition, span_peaks

NUMBERS = st.integers(0, 30).map(float)


@st.composite
def chains(draw):
    layers = draw(st.integers(1, 9))
    return {
        "times": draw(st.lists(NUMBERS, min_size=layers, max_size=layers)),
        "memory": draw(st.lists(NUMBERS, min_size=layers, max_size=layers)),
        "cut_times": draw(st.lists(NUMBERS, min_size=layers - 1, max_size=layers - 1)),
        "limit": draw(st.integers(0, 90)),
        "stages": draw(st.integers(1, layers)),
    }


def every_cutting(layers, stages):
    for cuts in combinations(range(1, layers), stages - 1):
        yield (0, *cuts, layers)


@given(chains())
@settings(max_examples=150, deadline=None)
def test_no_cutting_is_better(chain):
    """Brute force over all cuttings: same slowest stage, then same transfers, and None exactly when nothing fits."""
    times, memory, cuts, limit = chain["times"], chain["memory"], chain["cut_times"], chain["limit"]
    best = None
    for bounds in every_cutting(len(times), chain["stages"]):
        if any(sum(memory[a:b]) > limit for a, b in zip(bounds, bounds[1:])):
            continue
        moves = [0.0, *(cuts[b - 1] for b in bounds[1:-1]), 0.0]
        slowest = max(sum(times[a:b]) + moves[s] + moves[s + 1] for s, (a, b) in enumerate(zip(bounds, bounds[1:])))
        rank = (slowest, sum(moves))
        best = rank if best is None else min(best, rank)
    found = partition_chain(times, chain["stages"], memory=memory, limit=limit, cut_times=cuts)
    assert (found and (found.slowest, found.moved)) == best
    if found:
        assert found.bounds in set(every_cutting(len(times), chain["stages"]))


@given(st.integers(1, 7), st.data())
@settings(max_examples=100, deadline=None)
def test_stages_may_differ(layers, data):
    """A stage's time may depend on which stage it is, as memory does in a pipeline: the last one holds least."""
    stages = data.draw(st.integers(1, layers))
    costs = [
        np.asarray(data.draw(st.lists(NUMBERS, min_size=(layers + 1) ** 2, max_size=(layers + 1) ** 2))).reshape(
            layers + 1, layers + 1
        )
        for _ in range(stages)
    ]
    costs = [np.max(costs[stage:], axis=0) for stage in range(stages)]
    expected = min(
        max(costs[s][a, b] for s, (a, b) in enumerate(zip(bounds, bounds[1:])))
        for bounds in every_cutting(layers, stages)
    )
    found = partition(lambda entries: lambda stage, rows: costs[stage][entries][rows], layers, stages)
    assert found is not None and found.slowest == expected


@given(chains())
@settings(max_examples=60, deadline=None)
def test_a_bound_below_longer_stages_changes_nothing(chain):
    """As that by the layers alone, without the cut behind them."""
    layers, cuts = len(chain["times"]), np.asarray([0.0, *chain["cut_times"], 0.0])
    sums = SpanSums(chain["times"]).matrix() + cuts[:, None]

    def longer(longest: int) -> float:
        return min(sums[begin, begin + longest + 1] for begin in range(layers - longest))

    time = sums + cuts[None, :]
    given = (lambda entries: lambda stage, rows: time[entries][rows], layers, chain["stages"], chain["cut_times"])
    assert partition(*given, longer) == partition(*given)


def test_a_plain_chain():
    """Ten equal layers and one heavy one: the heavy one stays alone."""
    found = partition_chain([1.0] * 5 + [5.0] + [1.0] * 5, 3)
    assert found is not None
    assert found.sizes == (5, 1, 5)
    assert found.slowest == 5.0


def test_equally_slow_cuttings_are_told_apart_by_what_they_move():
    """The heavy layer decides the slowest stage; the other cut goes where least moves."""
    time = SpanSums([1.0, 1.0, 1.0, 9.0])
    found = partition(lambda entries: lambda stage, rows: time[entries][rows], 4, 3, [7.0, 2.0, 5.0])
    assert found is not None
    assert found.bounds == (0, 2, 3, 4)
    assert found.moved == 7.0


def test_more_stages_than_layers_are_refused():
    with pytest.raises(PlanError, match="2 layers cannot fill 3 stages"):
        partition_chain([1.0, 1.0], 3)


@given(st.lists(NUMBERS, min_size=1, max_size=8))
def test_spans(values):
    """Sums and peaks of every span, against slices."""
    count = len(values)
    for begin in range(count):
        for end in range(begin + 1, count + 1):
            assert SpanSums(values)[begin, end] == sum(values[begin:end])
            assert span_peaks(values)[begin, end] == max(values[begin:end])
