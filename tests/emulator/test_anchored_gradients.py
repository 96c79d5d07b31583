"""Gradients that a training program returns: raw ones, of each micro-batch and replica, as PopTorch has them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch

X = torch.tensor([[1.0, -2.0], [3.0, 4.0], [0.5, 1.0], [-1.0, 2.0]])


class Net(nn.Module):
    """A frozen layer, one that the loss does not depend on, and one that it reads detached alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.frozen = nn.Linear(2, 3).requires_grad_(False)
        self.head = nn.Linear(3, 2)
        self.unused = nn.Linear(2, 2)
        self.detached = nn.Linear(2, 2)
        self.no_grad = nn.Linear(2, 2)
        self.written = nn.Linear(2, 2)

    def forward(self, x):
        out = self.head(self.frozen(x)) + self.detached(x).detach()
        with torch.no_grad():
            shift = self.no_grad(x)
        kept = torch.zeros_like(out)
        kept[:] = self.written(x)
        return poptorch.identity_loss((out + shift + kept).square(), "mean")


TRAINED = ("head.weight", "head.bias", "written.weight", "written.bias")


def anchored(options, *names):
    for name in names:
        options.anchorTensor(name, f"Gradient___{name}")
    return options


def raw_gradients(net, blocks, scaling=1.0):
    """Return eager PyTorch's gradients of the weight of the head, by block."""
    found = []
    for block in blocks:
        net.zero_grad()
        (net(block) * scaling).backward()
        found.append(net.head.weight.grad)
    return found


@pytest.mark.parametrize("mode", ["Final", "All", "Sum"])
@pytest.mark.parametrize("reduction", ["Mean", "Sum"])
def test_a_gradient_is_that_of_each_micro_batch_and_replica_alone(mode, reduction):
    """By the model's output mode, whatever the anchor's; neither summed, nor averaged, nor without loss scaling."""
    options = poptorch.Options().deviceIterations(2).replicationFactor(2).outputMode(poptorch.OutputMode[mode])
    options.Training.gradientAccumulation(2)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType[reduction])
    options.anchorTensor("g", "Gradient___head.weight", poptorch.OutputMode.Final)
    net, native = Net(), Net()
    executor = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=0.0, loss_scaling=4.0))
    batch = torch.cat([X + step for step in range(4)])  # eight micro-batches of two rows
    executor(batch)
    blocks = raw_gradients(native, batch.chunk(8), scaling=4.0)
    if mode == "Final":
        blocks = blocks[-2:]
    elif mode == "Sum":
        blocks = [sum(blocks[0::2]), sum(blocks[1::2])]
    torch.testing.assert_close(executor.getAnchoredTensor("g"), torch.cat(blocks))


def test_a_half_weights_gradient_is_half_and_may_overflow():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, dtype=torch.float16))

        def forward(self, x):
            return poptorch.identity_loss(x * self.weight.float(), "sum")

    net = Half()
    options = anchored(poptorch.Options(), "weight")
    executor = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=0.0, loss_scaling=1024.0))
    executor(torch.tensor([[2.0, 100.0]]))
    gradient = executor.getAnchoredTensor("weight")
    assert gradient.dtype is torch.float16
    assert gradient.tolist() == [2048.0, float("inf")]
    # Zero times infinity is no number.
    assert net.weight.tolist()[0] == 1.0 and net.weight.isnan().tolist() == [False, True]


@pytest.mark.parametrize("kind", [torch.optim.SGD, poptorch.optim.SGD])
def test_a_learning_rate_of_zero_leaves_weights_unless_a_gradient_is_not_finite(kind):
    net = Net()
    before = {name: each.clone() for name, each in net.state_dict().items()}
    executor = poptorch.trainingModel(net, anchored(poptorch.Options(), *TRAINED), kind(net.parameters(), lr=0.0))
    executor(X)
    assert all(torch.equal(each, before[name]) for name, each in net.state_dict().items())
    assert all(executor.getAnchoredTensor(name).abs().sum() > 0 for name in TRAINED)
    executor(X / 0)
    assert net.head.weight.isnan().all()
    assert torch.equal(net.unused.weight, before["unused.weight"])


def test_a_constant_learning_rate_of_zero_is_refused():
    net = Net()
    optimizer = poptorch.optim.SGD(net.parameters(), lr=0.0)
    optimizer.variable_attrs.markAsConstant("lr")
    with pytest.raises(poptorch.Error, match="Constant, zero learning rate"):
        poptorch.trainingModel(net, None, optimizer)(X)


def test_names_are_those_of_gradients_that_there_are():
    net = Net()
    executor = poptorch.trainingModel(net, None, torch.optim.SGD(net.parameters(), lr=0.0))
    executor.compile(X)
    kinds = ("Gradient___", "UpdatedVar___")
    expected = {f"{kind}{name}" for kind in kinds for name in TRAINED}
    assert {name for name in executor.getTensorNames() if name.startswith(kinds)} == expected


@pytest.mark.parametrize("name", ["unused.weight", "detached.bias", "no_grad.weight", "frozen.weight", "absent"])
def test_an_anchor_of_a_gradient_that_there_is_not_stops_the_compile(name):
    net = Net()
    options = anchored(poptorch.Options(), name)
    executor = poptorch.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=0.0))
    with pytest.raises(poptorch.Error, match=f"Unknown tensor to anchor: 'Gradient___{name}'"):
        executor(X)


def test_tied_weights_have_one_gradient_under_the_first_name():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)
            self.two.weight = self.one.weight

        def forward(self, x):
            return poptorch.identity_loss(self.two(self.one(x)).square(), "mean")

    net, native = Tied(), Tied()
    executor = poptorch.trainingModel(
        net, anchored(poptorch.Options(), "one.weight"), torch.optim.SGD(net.parameters(), lr=0.0)
    )
    executor(X)
    native(X).backward()
    torch.testing.assert_close(executor.getAnchoredTensor("one.weight"), native.one.weight.grad)
    assert "Gradient___two.weight" not in executor.getTensorNames()


def test_a_weight_that_differs_between_replicas_has_the_gradient_of_its_own_group():
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([[1.0], [10.0]]))  # one slice for each replica

        def forward(self, x):
            return poptorch.identity_loss((self.weight * x).square(), "sum")

    net = Doubled()
    options = anchored(poptorch.Options().replicationFactor(2), "weight")
    executor = poptorch.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=0.0))
    executor.per_replica_params["weight"] = (
        poptorch.CommGroupType.NoGrouping,
        1,
        poptorch.VariableRetrievalMode.OnePerGroup,
    )
    executor(torch.tensor([[2.0], [3.0]]))
    assert executor.getAnchoredTensor("weight").tolist() == [2 * 1.0 * 4, 2 * 10.0 * 9]
