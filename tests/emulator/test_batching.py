"""The batching arithmetic against a brute-force walk over every micro-batch."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.enums import CommGroupType, OutputMode

factors = st.sampled_from([1, 2, 3, 4])


class TagRows(nn.Module):
    """Returns its rows, and one scalar per micro-batch."""

    def forward(self, x):
        return x * 1, x.sum()


def run(options: poptorch.Options, x: torch.Tensor):
    model = poptorch.inferenceModel(TagRows(), options)
    try:
        return model(x)
    finally:
        model.destroy()


@given(d=factors, r=factors, b=factors)
def test_all_returns_every_row_in_order(d, r, b):
    """Mode All gives back [D][R][B] in the order of the input, scalars one a micro-batch."""
    x = torch.arange(float(d * r * b)).reshape(-1, 1)
    options = poptorch.Options().deviceIterations(d).replicationFactor(r).autoRoundNumIPUs()
    rows, sums = run(options, x)
    assert torch.equal(rows, x)
    expected = torch.stack([x[i * b : (i + 1) * b].sum() for i in range(d * r)])
    assert torch.equal(sums, expected if d * r > 1 else expected[0])


@given(d=factors, r=factors, b=factors)
def test_final_returns_the_last_iteration_of_every_replica(d, r, b):
    """Mode Final keeps, for each replica, the last micro-batch."""
    x = torch.arange(float(d * r * b)).reshape(-1, 1)
    options = poptorch.Options().deviceIterations(d).replicationFactor(r).autoRoundNumIPUs()
    rows, _ = run(options.outputMode(OutputMode.Final), x)
    kept = [((d - 1) * r + replica) * b + row for replica, row in itertools.product(range(r), range(b))]
    assert torch.equal(rows, x[kept])


@given(d=factors, r=factors, b=factors)
def test_sum_adds_over_iterations_separately_for_each_replica(d, r, b):
    """Mode Sum adds over device iterations, not over replicas or rows."""
    x = torch.arange(float(d * r * b)).reshape(-1, 1)
    options = poptorch.Options().deviceIterations(d).replicationFactor(r).autoRoundNumIPUs()
    rows, _ = run(options.outputMode(OutputMode.Sum), x)
    expected = torch.zeros(r * b, 1)
    for iteration, replica, row in itertools.product(range(d), range(r), range(b)):
        expected[replica * b + row] += x[(iteration * r + replica) * b + row]
    assert torch.equal(rows, expected)


@given(groups=factors, periods=factors, r=factors, b=factors)
def test_every_n_returns_each_nth_iteration(groups, periods, r, b):
    """Mode EveryN keeps device iterations N-1, 2N-1, ... ."""
    d = groups * periods
    x = torch.arange(float(d * r * b)).reshape(-1, 1)
    options = poptorch.Options().deviceIterations(d).replicationFactor(r).autoRoundNumIPUs()
    rows, _ = run(options.outputMode(OutputMode.EveryN, periods), x)
    kept = [
        (iteration * r + replica) * b + row
        for iteration, replica, row in itertools.product(range(d), range(r), range(b))
        if (iteration + 1) % periods == 0
    ]
    assert torch.equal(rows, x[kept])


@pytest.mark.parametrize(
    ("kind", "expected"), [(CommGroupType.Consecutive, [0, 0, 1, 1]), (CommGroupType.Orthogonal, [0, 1, 0, 1])]
)
def test_grouped_replicas_read_the_same_slice(kind, expected):
    """With inputReplicaGrouping the replicas of a group read one input slot."""
    options = poptorch.Options().replicationFactor(4).inputReplicaGrouping(2, kind)
    rows, _ = run(options, torch.tensor([[0.0], [1.0]]))
    assert rows.flatten().tolist() == expected


def test_a_batch_that_cannot_be_cut_is_an_assertion_naming_the_factors():
    """The divisibility rule is checked at compile time, with the numbers."""
    model = poptorch.inferenceModel(TagRows(), poptorch.Options().deviceIterations(2))
    with pytest.raises(AssertionError, match=r"Invalid batch dimension: In the input.*deviceIterations \(2\)"):
        model(torch.zeros(5, 1))


@pytest.mark.parametrize(("period", "message"), [(5, "Return period must be <="), (3, "must be a factor of")])
def test_a_return_period_must_divide_the_iterations(period, message):
    """EveryN with an unsuitable period is refused at compile time."""
    options = poptorch.Options().deviceIterations(4).outputMode(OutputMode.EveryN, period)
    with pytest.raises(poptorch.Error, match=message):
        run(options, torch.zeros(4, 1))
