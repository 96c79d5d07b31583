"""A parameter, a buffer or an argument that a model returns is that object, and a view is one of it, as in PyTorch."""

from __future__ import annotations

from typing import Any, Callable, List

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.deferred import DeferredTensor

Loop = Callable[[nn.Module, torch.optim.Optimizer], List[Any]]
X = torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 1, 0])
every_update = pytest.mark.parametrize("update", ["auto", "device", "host"])


class Net(nn.Module):
    """Returns its scores, and the tensors that `also` takes of it and its argument."""

    def __init__(self, also: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.also = nn.Linear(4, 3), also
        self.calls: torch.Tensor
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("calls", torch.zeros(4))
        self.register_buffer("table", torch.arange(12.0).view(3, 4))

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        return self.layer(x) * self.scale, self.also(self, x)


def weights(net: Any, x: torch.Tensor) -> List[torch.Tensor]:
    return [net.scale, net.calls, net.layer.weight, net.scale.detach(), net.layer.bias.data]


def views(net: Any, x: torch.Tensor) -> List[torch.Tensor]:
    weight, table = net.layer.weight, net.table
    taken = [weight[0], weight[:, 1:3], weight.t(), weight[1:, ::2].t(), weight.view(-1), weight.view(2, 6)[1:]]
    taken += [weight[2, 3], weight.unsqueeze(1).expand(3, 2, 4), weight.view(3, 2, 2).permute(1, 2, 0)[:, 0]]
    return [*taken, net.calls[1:], table.t(), table[1:2].detach(), net.scale.expand(2, 2), net.layer.bias[1]]


def seen(also: Callable[[Any, torch.Tensor], Any], loop: Loop, update: str) -> List[List[Any]]:
    """Return the numbers that a loop sees, and the weights afterwards, in PyTorch and captured."""
    found = []
    for captured in (False, True):
        net = Net(also)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
        if captured:
            ipu_prepare(net, optimizer, config=IPUConfig(update=update))
        numbers = loop(net, optimizer)
        found.append([torch.as_tensor(each).tolist() for each in (*numbers, *net.state_dict().values())])
    return found


def numbers_of(tensors: List[torch.Tensor]) -> List[List[float]]:
    return [each.tolist() for each in tensors]


def assert_equal(also: Callable[[Any, torch.Tensor], Any], loop: Loop, update: str) -> None:
    eager, captured = seen(also, loop, update)
    assert len(eager) == len(captured)
    for mine, theirs in zip(captured, eager):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs))


@every_update
@pytest.mark.parametrize("also", [weights, views])
def test_results_have_the_values_of_the_moment(also: Any, update: str) -> None:
    def loop(net: nn.Module, optimizer: torch.optim.Optimizer) -> List[Any]:
        found: List[Any] = []
        kept: List[torch.Tensor] = []
        for x in X:
            optimizer.zero_grad()
            scores, own = net(x)
            loss = F.cross_entropy(scores, Y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            found += [loss.detach(), *numbers_of(own), *numbers_of(kept)]
            kept = own
        return found

    assert_equal(also, loop, update)


@every_update
def test_gradients_flow_as_in_pytorch(update: str) -> None:
    def also(net: Any, x: torch.Tensor) -> List[torch.Tensor]:
        return [net.scale, net.layer.weight[0], net.layer.weight.t()[1:], net.scale.detach(), net.layer.bias.data[:2]]

    def loop(net: nn.Module, optimizer: torch.optim.Optimizer) -> List[Any]:
        found: List[Any] = []
        for number, x in enumerate(X):
            net.train(number < 3)
            scores, own = net(x)
            loss = F.cross_entropy(scores, Y) + sum(each.pow(2).sum() for each in own)
            optimizer.zero_grad()
            loss.backward()
            found += [each.grad.tolist() for each in net.parameters() if each.grad is not None] if number == 4 else []
            optimizer.step()
            found.append(loss.detach())
        return found

    assert_equal(also, loop, update)


@every_update
def test_writes_into_results_are_writes_into_weights_and_arguments(update: str) -> None:
    def also(net: Any, x: torch.Tensor) -> List[torch.Tensor]:
        return [net.scale, net.layer.weight, net.calls, net.layer.weight[0], net.table[1:], x, x[:2]]

    def loop(net: nn.Module, optimizer: torch.optim.Optimizer) -> List[Any]:
        found: List[Any] = []
        for x in X.clone():
            optimizer.zero_grad()
            scores, (scale, weight, calls, row, table, same, rows) = net(x)
            loss = F.cross_entropy(scores, Y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            with torch.no_grad():
                scale.mul_(0.9)
                weight.clamp_(-0.3, 0.3)
                row.add_(0.1)
                calls.mul_(2)
                table.sub_(1)
                same.mul_(2)
                rows.add_(1)
            found += [loss.detach(), x.clone()]
        return found

    assert_equal(also, loop, update)


@every_update
def test_evaluations_return_what_the_model_has(update: str) -> None:
    def loop(net: nn.Module, optimizer: torch.optim.Optimizer) -> List[Any]:
        found: List[Any] = []
        for x in X:
            with torch.no_grad():
                _, own = net.eval()(x)
            optimizer.zero_grad()
            loss = F.cross_entropy(net.train()(x)[0], Y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            found += [loss.detach(), *numbers_of(own)]
            with torch.no_grad():
                own[0].mul_(0.9)
        return found

    assert_equal(weights, loop, update)
    assert_equal(views, loop, update)


def test_results_are_the_objects_themselves() -> None:
    def also(net: Any, x: torch.Tensor) -> Any:
        return {"own": (net.scale, net.calls, x), "rows": x[1:]}

    net = Net(also)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    ipu_prepare(net, optimizer)
    for training in (True, False, True, False):
        net.train(training)
        with torch.set_grad_enabled(training):
            for x in (X[0], X[1], X[2][:3]):
                found = net(x)[1]
                own = (net.scale, net.calls, x)
                assert all(mine is theirs for mine, theirs in zip(found["own"], own))
                assert found["rows"].data_ptr() == x[1:].data_ptr()
                assert found["rows"].shape == x[1:].shape


def test_an_argument_of_another_model_is_that_value() -> None:
    losses = []
    for captured in (False, True):
        torch.manual_seed(0)
        first, second = nn.Linear(4, 4), Net(lambda net, x: (x, x[:, 1:]))
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.5)
        if captured:
            ipu_prepare(first, second, optimizer)
        for x in X:
            optimizer.zero_grad()
            hidden = first(x)
            scores, (same, columns) = second(hidden)
            assert same is hidden
            loss = F.cross_entropy(scores, Y) + same.pow(2).mean() + columns.abs().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    torch.testing.assert_close(losses[:6], losses[6:])


@every_update
def test_a_distribution_with_a_parameter_trains_it(update: str) -> None:
    def loop(net: nn.Module, optimizer: torch.optim.Optimizer) -> List[Any]:
        found: List[Any] = []
        for x in X:
            optimizer.zero_grad()
            scores, normal = net(x)
            loss = F.cross_entropy(scores, Y) - normal.log_prob(x[:, :3]).mean() - 0.1 * normal.entropy().mean()
            loss.backward()
            optimizer.step()
            found += [loss.detach(), normal.stddev.tolist()]
        return found

    assert_equal(lambda net, x: Normal(net.layer(x), net.scale), loop, update)


ANCHORS = torch.arange(12.0).view(3, 4) / 12


def constants(net: Any, x: torch.Tensor) -> List[torch.Tensor]:
    if not hasattr(net, "anchors"):
        net.anchors = ANCHORS.clone()
    hidden = net.layer(x)
    rows = hidden.relu().shape[0]  # the memory of this result is that of the next one
    grid = torch.arange(rows * 2.0).view(rows, 2) / 10
    grid[0] = net.anchors[0, :2]
    return [net.anchors, net.anchors[1], net.anchors.t()[:, 2], ANCHORS.type(type(x)), grid.flatten(), torch.ones(3, 3)]


@pytest.mark.parametrize("update", ["auto", "host"])
def test_constants_of_the_model_are_known_before_the_step(update: str) -> None:
    """A loop matches targets with anchors that a model returns, and writes into these."""

    def loop(net: nn.Module, optimizer: torch.optim.Optimizer) -> List[Any]:
        found: List[Any] = []
        for number, x in enumerate(X[:4]):
            scores, own = net(x)
            marks = torch.zeros(3, dtype=torch.long)
            for each in own[:-1]:
                marks[(each.flatten()[-1] * 3).long().clamp(0, 2)] += 1
            chosen = own[-1].squeeze_().unsqueeze_(0)[0, marks.argmax()] > 0
            loss = scores[:, marks > 0].square().mean() + scores[:, chosen].mean()
            found += [loss, marks, *numbers_of(own)]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if number == 1:
                own[1].mul_(0.9)
        return found

    assert_equal(constants, loop, update)


def test_what_follows_arguments_weights_or_draws_is_no_constant() -> None:
    """Each step has other values."""

    def also(net: Any, x: torch.Tensor) -> List[torch.Tensor]:
        written, total = torch.zeros(2, 5), torch.zeros(1)
        written[1].copy_(x[:, 0])
        total.add_(net.layer.weight.data.sum())
        return [written, written[1] * 2, total, net.calls * torch.ones(4), x.data.sum(0)]

    def loop(net: nn.Module, optimizer: torch.optim.Optimizer) -> List[Any]:
        found: List[Any] = []
        for x in X:
            scores, own = net(x)
            scores.square().mean().backward()
            optimizer.step()
            found += own
        return found

    assert_equal(also, loop, "auto")
    net = Net(lambda net, x: torch.rand(2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    ipu_prepare(net, optimizer)
    assert isinstance(net(X[0])[1], DeferredTensor)


class Views(nn.Module):
    """A layer, and a view of its argument."""

    def __init__(self, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.view = nn.Linear(4, 3), view

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x), self.view(x)


@pytest.mark.parametrize("update", ["auto", "host", "device"])
@pytest.mark.parametrize("evaluates", [False, True], ids=["training", "evaluation"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "view",
    [
        *(torch.Tensor.t, torch.Tensor.diagonal, lambda x: x.unfold(1, 2, 1), lambda x: x[1], lambda x: x[:, ::2]),
        *(lambda x: x.t().reshape(-1), lambda x: x[:, :1].expand(4, 4)),
    ],
)
def test_views_of_arguments_that_lie_elsewhere_in_memory(
    view: Callable[[torch.Tensor], torch.Tensor], transposed: bool, evaluates: bool, update: str
) -> None:
    """Batches are slices of one tensor, in either order of its axes."""
    data = torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(1))
    batches = list(data.transpose(1, 2) if transposed else data)
    model = Views(view)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ipu_prepare(model, optimizer, config=IPUConfig(update=update))
    for x in [*batches, batches[0].contiguous(), batches[1].t().contiguous().t()]:
        if evaluates:
            with torch.no_grad():
                found = model(x)[1]
        else:
            scores, found = model(x)
            scores.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.testing.assert_close(torch.tensor(found.tolist()), view(x))
