"""A parameter, a buffer or an argument that a call stores in an attribute is that object, and a view is one of it."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare

X = torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 1, 0, 2])
Loop = Callable[[Any, Callable[[torch.Tensor], torch.Tensor], torch.Tensor], List[torch.Tensor]]
every_update = pytest.mark.parametrize("update", ["auto", "device", "host"])


class Stores(nn.Module):
    """Stores tensors for others in attributes, containers, and by a hook."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros(2))
        self.of_hook: Dict[str, torch.Tensor] = {}
        self.layer.register_forward_hook(self._store)

    def _store(self, layer: Any, given: Any, found: torch.Tensor) -> None:
        self.of_hook.update(input=given[0], weight=layer.weight, part=layer.bias[:2], calls=self.calls, found=found)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.row, self.same, self.detached = self.layer.weight[0], self.calls, self.layer.bias.detach()
        self.given, self.first = x, x[0]
        self.kept = {"bias": self.layer.bias, "columns": self.layer.weight.t()[1:]}
        self.pair = (self.calls, [self.layer.weight[1:], x])
        found: torch.Tensor = self.layer(x)
        return found


def seen(loop: Loop, update: str) -> List[List[Any]]:
    """Return the numbers that a loop sees, and the weights afterwards, in PyTorch and captured."""
    both = []
    for captured in (False, True):
        net = Stores()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
        if captured:
            ipu_prepare(net, optimizer, config=IPUConfig(update=update))

        def step(loss: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.detach()

        numbers: List[Any] = []
        for x in X.clone():
            numbers += [each.tolist() for each in loop(net, step, x)]
        both.append([*numbers, *[each.tolist() for each in net.state_dict().values()]])
    return both


def assert_equal(loop: Loop, update: str) -> None:
    eager, captured = seen(loop, update)
    assert len(eager) == len(captured)
    for mine, theirs in zip(captured, eager):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs))


@every_update
def test_attributes_have_the_values_of_the_moment(update: str) -> None:
    def loop(net: Any, step: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> List[torch.Tensor]:
        loss = step(F.cross_entropy(net(x), Y))
        stored = [net.row, net.same, net.detached, net.given, net.first, *net.kept.values(), *net.of_hook.values()]
        assert net.same is net.calls and net.kept["bias"] is net.layer.bias and net.given is x
        return [loss, *stored, net.pair[0], *net.pair[1]]

    assert_equal(loop, update)


@every_update
def test_gradients_flow_through_attributes(update: str) -> None:
    def loop(net: Any, step: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> List[torch.Tensor]:
        scores = net(x)
        stored = [net.row, net.kept["bias"], net.kept["columns"], net.of_hook["part"], net.of_hook["found"]]
        loss = F.cross_entropy(scores, Y) + sum(0.1 * each.pow(2).sum() for each in stored)
        return [step(loss), net.row]

    assert_equal(loop, update)


@every_update
@pytest.mark.parametrize("trains", [True, False])
def test_writes_into_attributes_are_writes_into_weights_and_arguments(trains: bool, update: str) -> None:
    def loop(net: Any, step: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> List[torch.Tensor]:
        loss = step(F.cross_entropy(net(x), Y))
        net.train(trains)
        with torch.no_grad():
            if not trains:
                net(x)
            net.row.mul_(0.5)
            net.same[1] = 0
            net.kept["bias"].clamp_(-0.1, 0.1)
            net.kept["columns"][0] += 0.25
            net.given[1:].mul_(2)
            net.first.zero_()
        net.train()
        return [loss, x, net.layer.weight, net.calls]

    assert_equal(loop, update)


@every_update
def test_attributes_of_earlier_calls_stay_weights(update: str) -> None:
    kept: List[torch.Tensor] = []

    def loop(net: Any, step: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> List[torch.Tensor]:
        if net.calls.sum() == 0:
            kept.clear()
        loss = step(F.cross_entropy(net(x), Y))
        kept.extend([net.row, net.same, net.given])
        return [loss, *kept]

    assert_equal(loop, update)


def test_buffers_under_two_names_count_for_other_models() -> None:
    """Another model reads a buffer that the calls of the first one store in an attribute."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls: torch.Tensor
            self.register_buffer("calls", torch.zeros(2))
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> Any:
            self.calls += 1
            self.same = self.calls
            return self.layer(x)

    def numbers(captured: bool) -> List[float]:
        torch.manual_seed(0)
        net = Counts()

        class Reads(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 3)

            def forward(self, x: torch.Tensor) -> Any:
                return self.layer(x) * net.calls.sum()

        reads = Reads()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        if captured:
            ipu_prepare(net, optimizer, config=IPUConfig(update="host"))
            ipu_prepare(reads)
        found = []
        for x in X:
            loss = F.cross_entropy(net(x), Y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            assert net.same is net.calls
            with torch.no_grad():
                found += [float(loss), float(reads(x).sum())]
        return found

    assert numbers(True) == pytest.approx(numbers(False), rel=1e-4)
