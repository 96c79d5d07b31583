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


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.float16, torch.float32], ids=str
)
def test_sums_are_of_the_type_of_what_they_add(dtype):
    """Mode Sum keeps the output's type as every mode does, and wraps round within it."""
    x = torch.tensor([[100], [60], [100], [3]]).to(dtype)
    options = poptorch.Options().deviceIterations(4).outputMode(OutputMode.Sum)
    rows, _ = run(options, x)
    assert rows.dtype is dtype
    assert torch.equal(rows, torch.tensor([[263]]).to(dtype))


class Turned(nn.Module):
    """Returns a transposed view, an image that PyTorch's convolution lays out channels last, and their loss."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 1).to(memory_format=torch.channels_last)

    def forward(self, x):
        image = self.conv(x)
        return x.transpose(1, 2), image, poptorch.identity_loss(image, "mean")


@pytest.mark.parametrize("wrap", [poptorch.inferenceModel, poptorch.trainingModel])
@pytest.mark.parametrize("mode", [OutputMode.All, OutputMode.Final, OutputMode.Sum], ids=str)
@pytest.mark.parametrize("iterations", [1, 2])
def test_outputs_are_contiguous(wrap, mode, iterations):
    """The host's buffers for outputs are filled row by row, so that `view` works whatever strides forward's have."""
    model = Turned()
    x = torch.arange(iterations * 96.0).reshape(-1, 2, 4, 6)
    with torch.no_grad():
        blocks = [model(part)[:2] for part in x.chunk(iterations)]
    executor = wrap(model, poptorch.Options().deviceIterations(iterations).outputMode(mode))
    turned, image, _ = executor(x)
    executor.destroy()
    views, images = zip(*blocks)
    expected = {OutputMode.All: torch.cat(views), OutputMode.Final: views[-1], OutputMode.Sum: sum(views)}[mode]
    assert torch.equal(turned.view(-1), expected.reshape(-1))
    assert image.is_contiguous()
    if wrap is poptorch.inferenceModel:
        expected = {OutputMode.All: torch.cat(images), OutputMode.Final: images[-1], OutputMode.Sum: sum(images)}[mode]
        assert torch.allclose(image, expected)


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


class TagWhileTraining(nn.Module):
    """Returns its rows and one scalar per micro-batch, beside a loss."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * 1, x.sum(), poptorch.identity_loss(x * self.weight, "sum")


def blocks_kept(mode, d, a, r, period):
    """Return, for each block of the output, the micro-batches (device iteration, step, replica) that it adds up."""
    if mode is OutputMode.Sum:
        return [[(i, k, replica) for i in range(d) for k in range(a)] for replica in range(r)]
    if mode is OutputMode.Final:
        return [[(d - 1, a - 1, replica)] for replica in range(r)]
    step = period if mode is OutputMode.EveryN else 1
    return [[(i, k, replica)] for i in range(step - 1, d, step) for k in range(a) for replica in range(r)]


@given(
    mode=st.sampled_from([OutputMode.All, OutputMode.Final, OutputMode.Sum, OutputMode.EveryN]),
    periods=st.sampled_from([1, 2]),
    period=st.sampled_from([1, 2, 3]),
    a=st.sampled_from([1, 2, 3]),
    r=st.sampled_from([1, 2, 4]),
    b=st.sampled_from([1, 3]),
)
def test_training_keeps_the_micro_batches_that_its_mode_says(mode, periods, period, a, r, b):
    """The leading dimension is [D][A][R][B], inside and out."""
    d = periods * period
    x = torch.arange(float(d * a * r * b)).reshape(-1, 1)
    options = poptorch.Options().deviceIterations(d).replicationFactor(r)
    options.outputMode(mode, period) if mode is OutputMode.EveryN else options.outputMode(mode)
    options.Training.gradientAccumulation(a)
    model = poptorch.trainingModel(TagWhileTraining(), options)
    rows, sums, losses = model(x)
    model.destroy()

    def micro_batch(i, k, replica):
        start = ((i * a + k) * r + replica) * b
        return x[start : start + b]

    kept = [[micro_batch(*place) for place in places] for places in blocks_kept(mode, d, a, r, period)]
    assert torch.equal(rows, torch.cat([sum(block) for block in kept]))
    expected = torch.stack([sum(part.sum() for part in block) for block in kept])
    assert torch.equal(sums, expected if len(kept) > 1 else expected[0])
    assert losses.shape == sums.shape


def test_the_worked_example():
    """D=2, A=3, R=2, B=4: 48 rows in; the modes keep the blocks that the guide names."""
    x = torch.arange(48.0).reshape(-1, 1)
    expected = {
        OutputMode.All: x,
        OutputMode.Final: x[40:48],
        OutputMode.Sum: x.reshape(6, 8, 1).sum(0),
        OutputMode.EveryN: x[24:48],
    }
    for mode, rows in expected.items():
        options = poptorch.Options().deviceIterations(2).replicationFactor(2)
        options.outputMode(mode, 2) if mode is OutputMode.EveryN else options.outputMode(mode)
        options.Training.gradientAccumulation(3)
        model = poptorch.trainingModel(TagWhileTraining(), options)
        assert torch.equal(model(x)[0], rows)
        assert poptorch.counters(model).optimizer_updates == 2
        model.destroy()


@given(
    kind=st.sampled_from([CommGroupType.Consecutive, CommGroupType.Orthogonal]),
    case=st.sampled_from([(r, g) for r in (1, 2, 4, 8) for g in (1, 2, 4, 8) if g <= r]),
    b=st.sampled_from([1, 2]),
)
def test_groups_of_replicas_read_by_their_rule(kind, case, b):
    """Consecutive: replica r reads slot r // G; orthogonal: slot r mod (R / G). Outputs have a block per replica."""
    r, g = case
    x = torch.arange(float(r // g * b)).reshape(-1, 1)
    options = poptorch.Options().replicationFactor(r).inputReplicaGrouping(g, kind)
    rows, _ = run(options, x)
    slots = [replica // g if kind is CommGroupType.Consecutive else replica % (r // g) for replica in range(r)]
    assert torch.equal(rows, torch.cat([x[slot * b : slot * b + b] for slot in slots]))


@given(
    kind=st.sampled_from([CommGroupType.Consecutive, CommGroupType.Orthogonal]),
    case=st.sampled_from([(4, 2), (8, 2), (8, 4), (2, 2)]),
    steps=st.sampled_from([(2, 1), (1, 3), (2, 2)]),
    b=st.sampled_from([1, 2]),
)
def test_groups_step_through_the_batch_in_the_order_of_ungrouped_replicas(kind, case, steps, b):
    """The emulator's choice where PopTorch's is unspecified: [D][A][slot][B] in, [D][A][R][B] out."""
    (r, g), (d, a) = case, steps
    slots = r // g
    x = torch.arange(float(d * a * slots * b)).reshape(d, a, slots, b, 1)
    options = poptorch.Options().deviceIterations(d).replicationFactor(r).inputReplicaGrouping(g, kind)
    options.outputMode(OutputMode.All).Training.gradientAccumulation(a)
    model = poptorch.trainingModel(TagWhileTraining(), options)
    rows, sums, _ = model(x.flatten(0, 3))
    model.destroy()
    slot_of = [replica // g if kind is CommGroupType.Consecutive else replica % slots for replica in range(r)]
    assert torch.equal(rows, x[:, :, slot_of].flatten(0, 3))
    assert torch.equal(sums, x[:, :, slot_of].sum(dim=(3, 4)).flatten())


def test_groups_that_step_are_warned_of(caplog):
    """A program that relies on them would not run alike on an IPU."""
    options = (
        poptorch.Options().deviceIterations(2).replicationFactor(2).inputReplicaGrouping(2, CommGroupType.Consecutive)
    )
    run(options, torch.zeros(2, 1))
    assert "results on an IPU are unspecified" in caplog.text
    caplog.clear()
    run(poptorch.Options().replicationFactor(2).inputReplicaGrouping(2, CommGroupType.Consecutive), torch.zeros(1, 1))
    assert "unspecified" not in caplog.text
