"""Parameters with a value for each group of replicas, against a walk over replicas by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.enums import CommGroupType, VariableRetrievalMode

KINDS = [CommGroupType.All, CommGroupType.NoGrouping, CommGroupType.Consecutive, CommGroupType.Orthogonal]
ROWS = 2


def group_of(kind, size, replicas, replica):
    """The same once more, in the words of the guide."""
    if kind is CommGroupType.All:
        return 0
    if kind is CommGroupType.NoGrouping:
        return replica
    return replica // size if kind is CommGroupType.Consecutive else replica % (replicas // size)


def groups(kind, size, replicas):
    return len({group_of(kind, size, replicas, replica) for replica in range(replicas)})


class Net(nn.Module):
    """A weight of its own for each group, and one for all."""

    def __init__(self, count):
        super().__init__()
        generator = torch.Generator().manual_seed(count)
        self.own = nn.Parameter(torch.randn(count, 3, generator=generator))
        self.shared = nn.Parameter(torch.randn(3, generator=generator))

    def forward(self, x):
        out = x * self.own + self.shared
        return out, F.mse_loss(out, x)


def options_for(replicas, d=1, a=1):
    options = poptorch.Options().deviceIterations(d).replicationFactor(replicas)
    options.Training.gradientAccumulation(a)
    return options


def by_hand(net, x, kind, size, replicas, d, a, lr):
    """Train as D updates, each from the mean over A * R micro-batches at the same weights."""
    own, shared = net.own.detach().clone(), net.shared.detach().clone()
    micro_batches = iter(x.split(ROWS))
    for _ in range(d):
        leaves = [own.clone().requires_grad_(), shared.clone().requires_grad_()]
        total = torch.zeros(())
        for _ in range(a):
            for replica in range(replicas):
                rows = next(micro_batches)
                out = rows * leaves[0][group_of(kind, size, replicas, replica)] + leaves[1]
                total = total + F.mse_loss(out, rows) / (a * replicas)
        total.backward()
        own, shared = own - lr * leaves[0].grad, shared - lr * leaves[1].grad
    return own, shared


@given(
    kind=st.sampled_from(KINDS),
    case=st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4)]),
    d=st.sampled_from([1, 2]),
    a=st.sampled_from([1, 3]),
    retrieval=st.sampled_from(list(VariableRetrievalMode)),
)
def test_training_equals_the_walk_by_hand(kind, case, d, a, retrieval):
    replicas, size = case
    count = groups(kind, size, replicas)
    net = Net(count)
    x = torch.randn(d * a * replicas * ROWS, 3, generator=torch.Generator().manual_seed(0))
    own, shared = by_hand(net, x, kind, size, replicas, d, a, lr=0.3)
    model = poptorch.trainingModel(net, options_for(replicas, d, a), torch.optim.SGD(net.parameters(), lr=0.3))
    model.own.replicaGrouping(kind, size, retrieval)
    model(x)
    members = [group_of(kind, size, replicas, replica) for replica in range(replicas)]
    expected = own[members] if retrieval is VariableRetrievalMode.AllReplicas else own
    torch.testing.assert_close(net.own.detach(), expected)
    torch.testing.assert_close(net.shared.detach(), shared)
    model.destroy()


@pytest.mark.parametrize("kind", KINDS)
def test_inference_gives_each_replica_the_value_of_its_group(kind):
    net = Net(groups(kind, 2, 4))
    model = poptorch.inferenceModel(net, options_for(4))
    assert model.own.replicaGrouping(kind, 2, VariableRetrievalMode.OnePerGroup) is None
    x = torch.ones(4, 3)
    expected = torch.stack([net.own[group_of(kind, 2, 4, replica)] + net.shared for replica in range(4)])
    torch.testing.assert_close(model(x)[0], expected.detach())


@pytest.mark.parametrize("kind", [CommGroupType.Consecutive, CommGroupType.Orthogonal])
@pytest.mark.parametrize("way", ["copyWeightsToDevice", "attach"])
def test_what_was_downloaded_for_all_replicas_can_be_uploaded_again(kind, way):
    net = Net(2)
    model = poptorch.trainingModel(net, options_for(4), torch.optim.SGD(net.parameters(), lr=0.3))
    model.own.replicaGrouping(kind, 2, VariableRetrievalMode.AllReplicas)
    x = torch.randn(4 * ROWS, 3)
    model(x)
    assert net.own.shape == (4, 3)
    learned = net.own.detach().clone()
    if way == "attach":
        model.detachFromDevice()
        model.attachToDevice()
    else:
        model.copyWeightsToDevice()
    model.copyWeightsToHost()
    torch.testing.assert_close(net.own.detach(), learned)


def test_norms_of_lamb_are_those_of_each_group():
    together, apart = Net(2), [Net(2), Net(2)]
    options = options_for(2)
    model = poptorch.trainingModel(together, options, poptorch.optim.LAMB(together.parameters(), lr=0.1))
    model.own.replicaGrouping(CommGroupType.NoGrouping, 0, VariableRetrievalMode.OnePerGroup)
    x = torch.randn(2, 3)
    model(x)
    for group, net in enumerate(apart):
        own = nn.Parameter(net.own.detach()[group].clone())
        F.mse_loss(x[group : group + 1] * own + net.shared, x[group : group + 1]).div(2).backward()
        step = own.grad / (own.grad.abs() + 1e-8) + 0.01 * own.detach()
        expected = own.detach() - 0.1 * own.detach().norm() / step.norm() * step
        torch.testing.assert_close(together.own.detach()[group], expected, rtol=1e-4, atol=1e-5)


def test_a_bound_on_the_gradients_norm_is_refused():
    net = Net(2)
    optimizer = poptorch.optim.SGD(net.parameters(), lr=0.1, max_grad_norm=1.0)
    model = poptorch.trainingModel(net, options_for(2), optimizer)
    model.own.replicaGrouping(CommGroupType.NoGrouping, 0, VariableRetrievalMode.OnePerGroup)
    with pytest.raises(poptorch.Error, match="max_grad_norm"):
        model(torch.ones(2, 3))


def test_a_parameter_that_forward_does_not_use_is_left_alone():
    class Unused(Net):
        def forward(self, x):
            return F.mse_loss(x * self.shared, x)

    net = Unused(2)
    before = net.own.detach().clone()
    model = poptorch.trainingModel(net, options_for(2), torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.5))
    model.own.replicaGrouping(CommGroupType.NoGrouping, 0, VariableRetrievalMode.OnePerGroup)
    model(torch.ones(2, 3))
    assert torch.equal(net.own.detach(), before)


def test_scalars_cannot_differ_between_replicas():
    net = nn.Module()
    net.scale = nn.Parameter(torch.ones(()))
    with pytest.raises(poptorch.Error, match="Scalars cannot be passed as per-replica"):
        poptorch.inferenceModel(net, options_for(2)).scale.replicaGrouping(
            CommGroupType.NoGrouping, 0, VariableRetrievalMode.OnePerGroup
        )


@pytest.mark.parametrize(
    ("count", "kind", "size", "words"),
    [
        (3, CommGroupType.NoGrouping, 0, "must have a leading dimension of 4"),
        (4, CommGroupType.Consecutive, 2, "must have a leading dimension of 2"),
        (4, CommGroupType.All, 0, "must have a leading dimension of 1"),
        (4, CommGroupType.Orthogonal, 3, "must be a factor"),
        (4, CommGroupType.Consecutive, 0, "must be a factor"),
    ],
)
def test_values_must_match_the_groups(count, kind, size, words):
    model = poptorch.inferenceModel(Net(count), options_for(4))
    model.own.replicaGrouping(kind, size, VariableRetrievalMode.OnePerGroup)
    with pytest.raises(poptorch.Error, match=words):
        model(torch.ones(4, 3))


def test_groups_are_set_before_compiling_and_for_one_executor():
    net = Net(2)
    x = torch.ones(2, 3)
    grouped, plain = poptorch.inferenceModel(net, options_for(2)), poptorch.inferenceModel(net)
    grouped.own.replicaGrouping(CommGroupType.NoGrouping, 0, VariableRetrievalMode.OnePerGroup)
    grouped(x)
    assert plain(x)[0].shape == (2, 3)
    with pytest.raises(poptorch.Error, match="before the model is compiled"):
        grouped.own.replicaGrouping(CommGroupType.All, 0, VariableRetrievalMode.OnePerGroup)


def test_a_top_level_parameter_comes_in_a_proxy():
    net = Net(2)
    model = poptorch.inferenceModel(net)
    assert not isinstance(model.own, torch.Tensor) and model.own.shape == (2, 3)
    with pytest.raises(TypeError):
        torch.add(model.own, 1)
    model.own.requires_grad = False
    assert not net.own.requires_grad
