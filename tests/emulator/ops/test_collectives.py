"""Collective operators between replicas equal plain PyTorch on the stacked values of all replicas."""

from __future__ import annotations

import pytest
import torch

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.ops.collectives import groups
from tests.emulator.calls import Calls

R, N = 4, 8
_ADD, _MEAN, _MUL, _MIN, _MAX, _AND, _OR, _SQUARES, _LOCAL = range(9)


def collective(x, name, shape, **attributes):
    example = torch.zeros(*shape, dtype=x.dtype)
    return poptorch.custom_op([x], name, "ai.graphcore", 1, [example], attributes=attributes)[0]


def options(replicas=R):
    return poptorch.Options().replicationFactor(replicas).outputMode(poptorch.OutputMode.All)


def inferred(x, name, shape, **attributes):
    """The operator's results by replica, for an input with a row for each replica."""
    called = Calls(lambda own: collective(own[0], name, shape, **attributes)[None])
    return poptorch.inferenceModel(called, options(len(x)))(x)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.int32])
def test_values_are_gathered_exchanged_and_summed(kind):
    x = torch.arange(R * N * 3).reshape(R, N, 3).to(kind)
    assert torch.equal(inferred(x, "ReplicatedAllGather", (R, N, 3)), x.expand(R, R, N, 3))
    blocks = x.reshape(R, R, N // R, 3).transpose(0, 1).reshape(R, N, 3)
    assert torch.equal(inferred(x, "ReplicatedAllToAll", (N, 3)), blocks)
    total = x.float().sum(0).to(kind).expand(R, N, 3)
    assert torch.equal(inferred(x, "ReplicatedAllReduce", (N, 3)), total)
    assert torch.equal(inferred(x, "ReplicatedAllReduceTP", (N, 3)), total)
    assert torch.equal(inferred(x, "ReplicatedAllReduceTP", (N, 3), backwards=1), x)


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (_MEAN, lambda x: x.mean(0)),
        (_MUL, lambda x: x.prod(0)),
        (_MIN, lambda x: x.amin(0)),
        (_MAX, lambda x: x.amax(0)),
        (_AND, lambda x: (x != 0).all(0).float()),
        (_OR, lambda x: (x != 0).any(0).float()),
        (_SQUARES, lambda x: (x * x).sum(0)),
        (_LOCAL, lambda x: x),
    ],
)
def test_reductions(operator, expected):
    x = torch.tensor([[1.5, 0.0, 0.0], [-2.0, 3.0, 0.0]])
    found = inferred(x, "ReplicatedAllReduce", (3,), __collectiveOperator=operator)
    assert torch.equal(found, expected(x).expand(2, 3))


def test_scattered_slices_are_padded_with_zeros():
    """Ten elements in slices of three for four replicas."""
    x = torch.arange(20.0 * 2).reshape(R, 2, 5)
    padded = torch.cat([x.sum(0).flatten(), torch.zeros(2)]).reshape(R, 3)
    assert torch.equal(inferred(x, "ReplicatedReduceScatter", (3,)), padded)
    own = torch.cat([x.reshape(R, 10), torch.zeros(R, 2)], 1).reshape(R, R, 3)
    local = inferred(x, "ReplicatedReduceScatter", (3,), __collectiveOperator=_LOCAL)
    assert torch.equal(local, torch.stack([own[replica, replica] for replica in range(R)]))


@pytest.mark.parametrize(
    ("attributes", "members"),
    [
        ({}, [[0, 1, 2, 3]]),
        ({"__collectiveReplicaGrouping": [4, 1, 2]}, [[0, 1], [2, 3]]),
        ({"__collectiveReplicaGrouping": [4, 2, 2]}, [[0, 2], [1, 3]]),
        ({"__collectiveCommGroup": [0, 0]}, [[0, 1, 2, 3]]),
        ({"__collectiveCommGroup": [1, 2]}, [[0, 1], [2, 3]]),
        ({"__collectiveCommGroup": [2, 2]}, [[0, 2], [1, 3]]),
        ({"__collectiveCommGroup": [3, 0]}, [[0], [1], [2], [3]]),
    ],
)
def test_groups_of_replicas_exchange_among_themselves(attributes, members):
    assert groups(attributes, R) == members
    x = torch.arange(R * 2.0).reshape(R, 2)
    expected = torch.empty(R, len(members[0]), 2)
    for own in members:
        expected[own] = x[own]
    assert torch.equal(inferred(x, "ReplicatedAllGather", (len(members[0]), 2), **attributes), expected)


class Rows(torch.nn.Module):
    """A row of a parameter for each replica, an operator on it, and a loss with other weights in each replica."""

    def __init__(self, operator):
        super().__init__()
        torch.manual_seed(0)
        self.x = torch.nn.Parameter(torch.randn(R, N, 3))
        self.operator = operator

    def forward(self, weights):
        result = self.operator(self.x)
        return result[None], poptorch.identity_loss((result * weights[0]).sum(), "sum")


def gradients(operator, weights):
    """The gradient of each replica's row, by the update: a learning rate of R undoes the mean over replicas."""
    model = Rows(operator)
    before = model.x.detach().clone()
    executor = poptorch.trainingModel(model, options(), poptorch.optim.SGD(model.parameters(), lr=float(R)))
    executor.x.replicaGrouping(poptorch.CommGroupType.NoGrouping, 0, poptorch.VariableRetrievalMode.OnePerGroup)
    executor(weights)
    return before - model.x.detach()


def test_gradients_are_those_that_the_operators_define():
    """A gathered value gives a replica its slice of its own gradient; followed by a sum, those of all replicas."""
    torch.manual_seed(1)
    w = torch.randn(R, R, N, 3)
    own = torch.stack([w[replica, replica] for replica in range(R)])

    def gathered(x):
        return collective(x, "ReplicatedAllGather", (R, N, 3))

    def summed_on_the_way_back(x):
        return collective(gathered(x), "ReplicatedAllReduceTP", (R, N, 3), op="add", backwards=1)

    assert torch.allclose(gradients(gathered, w), own, atol=1e-6)
    assert torch.allclose(gradients(summed_on_the_way_back, w), w.sum(0), atol=1e-6)


def test_gradients_of_operators_with_one_shape():
    torch.manual_seed(2)
    w = torch.randn(R, N, 3)
    exchanged = w.reshape(R, R, N // R, 3).transpose(0, 1).reshape(R, N, 3)
    cases = {
        "ReplicatedAllToAll": exchanged,
        "ReplicatedAllReduceTP": w,  # a sum whose gradient is the identity
    }
    for name, expected in cases.items():
        found = gradients(lambda x, name=name: collective(x, name, (N, 3)), w)
        assert torch.allclose(found, expected, atol=1e-6), name
    found = gradients(lambda x: x + collective(x, "ReplicatedAllReduce", (N, 3)), w)
    assert torch.allclose(found, w, atol=1e-6)  # nothing flows back through it


def test_a_scattered_value_has_a_gradient_for_the_local_operator_alone():
    """Each replica's slice is a part of its own value: the others' slices of the gradient come back together."""
    torch.manual_seed(3)
    w = torch.randn(R, 6)

    def scattered(operator):
        return lambda x: collective(x, "ReplicatedReduceScatter", (6,), __collectiveOperator=operator)

    assert torch.allclose(gradients(scattered(_LOCAL), w), w.reshape(N, 3).expand(R, N, 3), atol=1e-6)
    with pytest.raises(poptorch.Error, match="ReplicatedReduceScatter has a gradient for the operator Local"):
        gradients(scattered(_ADD), w)


def test_replicas_draw_and_write_as_they_do_without_an_exchange():
    """One after the other, whatever they exchange in between: random numbers and buffers are the same."""

    class Noisy(torch.nn.Module):
        def __init__(self, exchanges):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))
            self.exchanges = exchanges

        def forward(self, x):
            first = torch.rand_like(x)
            self.count.add_(x.sum())
            if self.exchanges:
                x = x + 0 * collective(x, "ReplicatedAllReduce", (1, 2))
            return first + x, self.count + 0

    found = []
    for exchanges in (False, True):
        chosen = options(2).randomSeed(5).broadcastBuffers(False)
        executor = poptorch.inferenceModel(Noisy(exchanges), chosen)
        found.append([executor(torch.ones(2, 2)) for _ in range(2)])
    assert torch.equal(found[0][1][1], found[1][1][1])
    assert torch.equal(found[0][0][0], found[1][0][0]) and torch.equal(found[0][1][0], found[1][1][0])


def test_operators_of_ones_own_get_the_values_of_all_replicas():
    """Gradients are those of autograd through the function of all replicas."""

    @poptorch.register_custom_op("RingShift", "test.rings", 1, between_replicas=True)
    def shifted(values, by):
        return [values[(replica - by) % len(values)] * 2 for replica in range(len(values))]

    def shift(x):
        return poptorch.custom_op([x], "RingShift", "test.rings", 1, [torch.zeros(N, 3)], attributes={"by": 1})[0]

    try:
        x = torch.arange(R * N * 3.0).reshape(R, N, 3)
        called = Calls(lambda own: shift(own[0])[None])
        assert torch.equal(poptorch.inferenceModel(called, options())(x), 2 * x.roll(1, 0))
        w = torch.randn(R, N, 3)
        assert torch.allclose(gradients(shift, w), 2 * w.roll(-1, 0), atol=1e-5)
    finally:
        poptorch.unregister_custom_op("RingShift", "test.rings", 1)


def test_a_function_of_one_replica_does_not_stand_in_for_an_exchange(caplog):
    poptorch.register_custom_op("ReplicatedAllGather", "ai.graphcore", 1)(lambda x: x[None].repeat(R, 1, 1))
    try:
        x = torch.arange(R * N * 3.0).reshape(R, N, 3)
        assert torch.equal(inferred(x, "ReplicatedAllGather", (R, N, 3)), x.expand(R, R, N, 3))
    finally:
        poptorch.unregister_custom_op("ReplicatedAllGather", "ai.graphcore", 1)
    assert "the emulator's own operator is used" in caplog.text


@pytest.mark.parametrize(
    ("name", "attributes", "message"),
    [
        ("ReplicatedAllReduce", {"__collectiveReplicaGrouping": [8, 1, 8]}, "The first number must be 4"),
        ("ReplicatedAllReduce", {"__collectiveReplicaGrouping": [4, 1, 3]}, "divides no 4 replicas"),
        (
            "ReplicatedAllReduce",
            {"__collectiveReplicaGrouping": [4, 1, 4], "__collectiveCommGroup": [0, 0]},
            "was given both",
        ),
        ("ReplicatedAllReduce", {"__collectiveOperator": 9}, "__collectiveOperator must be between 0 and 8"),
        ("ReplicatedAllToAll", {}, "cuts the first dimension into one block for each of 4 replicas"),
        ("ReplicatedAllGather", {}, "returned .*, and its example outputs are"),
    ],
)
def test_what_no_ipu_could_run_is_refused(name, attributes, message):
    with pytest.raises(poptorch.Error, match=message):
        inferred(torch.ones(R, 3), name, (3,), **attributes)


def test_types_that_cannot_be_exchanged_are_refused():
    with pytest.raises(poptorch.Error, match=r"takes float, half, int32 and uint32 values, got torch\.bool"):
        inferred(torch.ones(R, 3, dtype=torch.bool), "ReplicatedAllReduce", (3,))


def test_an_error_of_one_replica_ends_the_others():
    @poptorch.register_custom_op("Fails", "test.rings", 1, between_replicas=True)
    def fails(values):
        raise ZeroDivisionError("mine")

    try:
        called = Calls(lambda x: poptorch.custom_op([x], "Fails", "test.rings", 1, [torch.zeros(1, 3)])[0])
        executor = poptorch.inferenceModel(called, options())
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="mine"):
                executor(torch.ones(R, 3))
    finally:
        poptorch.unregister_custom_op("Fails", "test.rings", 1)
