"""Models whose forward no program can run are code of the loop: they train and evaluate as in plain PyTorch."""

from __future__ import annotations

import collections
import itertools
import logging
import random
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.errors import ForwardError

COUNTS: Dict[str, Any] = {"calls": 0, "seen": set()}


class Net(nn.Module):
    made = 0

    def __init__(self, middle: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.middle, self.calls = middle, 0
        self.settings = SimpleNamespace(calls=0, sizes=collections.defaultdict(list))
        self.recent: Any = collections.deque(maxlen=2)
        self.counts, self.generator = np.zeros(2), np.random.default_rng(3)
        self.own = torch.Generator().manual_seed(3)
        self.state: Any = None
        self.register_buffer("queue", torch.zeros(4))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self, self.norm(self.first(x)).relu()))


def counts(net: Any, h: torch.Tensor) -> torch.Tensor:
    net.calls += 1
    net.settings.calls += 1
    net.settings.sizes[len(h)].append(net.calls)
    net.counts[0] += 1
    type(net).made += 1
    COUNTS["calls"] += 1
    COUNTS["seen"].add(net.calls)
    return h * (1 + 0.1 * (net.calls + net.settings.calls + net.counts[0] + Net.made + len(COUNTS["seen"])))


def draws(net: Any, h: torch.Tensor) -> torch.Tensor:
    factors = random.random(), np.random.rand(), net.generator.random(), float(torch.rand((), generator=net.own))
    return h * sum(factors)


def leaves_out(net: Any, h: torch.Tensor) -> torch.Tensor:
    return h + net.norm(h) if random.random() < 0.5 else h


def remembers(net: Any, h: torch.Tensor) -> torch.Tensor:
    before = torch.zeros_like(h) if net.state is None or len(net.state) != len(h) else net.state
    net.state = h.detach()
    net.recent.append(len(h))
    return h + before * len(net.recent)


def decides(net: Any, h: torch.Tensor) -> torch.Tensor:
    return h * 2 if h.mean() > 0.4 else h / h.detach().max().item()


def routes(net: Any, h: torch.Tensor) -> torch.Tensor:
    routed = torch.zeros_like(h)
    for expert in range(2):
        rows = (h.argmax(1) % 2 == expert).nonzero().squeeze(1)
        if rows.numel():
            routed[rows] = h[rows] * (expert + 1)
    return routed


def queues(net: Any, h: torch.Tensor) -> torch.Tensor:
    place = int(net.pointer)
    net.queue[place] = h.detach().mean()
    net.pointer[...] = (place + 1) % len(net.queue)
    return h + net.queue.clone().mean()


def normalises(net: Any, h: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        net.last.weight.copy_(F.normalize(net.last.weight, dim=1))
    net.last.bias.data = net.last.bias.data.clamp(-0.3, 0.3)
    return h


def as_array(net: Any, h: torch.Tensor) -> torch.Tensor:
    return h / torch.from_numpy(h.detach().numpy().max(1) + 1)[:, None]


def differentiates(net: Any, h: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        z = h.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(z.pow(2).sum(), z)
    return h + 0.1 * gradient


FORWARDS = (counts, draws, leaves_out, remembers, decides, routes, queues, normalises, as_array, differentiates)


def seeded() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    Net.made = 0
    COUNTS.update(calls=0, seen=set())


def trained(middle: Any, update: str, evaluates_first: bool) -> List[Any]:
    """Return what a loop looks at: losses, an evaluation, weights, buffers, state and random numbers."""
    seeded()
    model = Net(middle)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if update:
        ipu_prepare(model, optimizer, config=IPUConfig(update=update))
    batches, targets = torch.randn(5, 6, 6), torch.randint(3, (5, 6))
    found: List[Any] = []

    def evaluate() -> None:
        model.eval()
        with torch.no_grad():
            found.append(model(batches[0]).abs().mean().item())
        model.train()

    if evaluates_first:
        evaluate()
    for number, (x, y) in enumerate(zip(batches, targets)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
        if number == 2:
            evaluate()
    found += [each.detach().double().sum().item() for each in model.state_dict().values()]
    found += [model.calls, model.settings.calls, sum(map(sum, model.settings.sizes.values())), Net.made]
    found += [*model.recent, *model.counts, *COUNTS["seen"], COUNTS["calls"], torch.rand(()).item(), random.random()]
    return found


@pytest.mark.parametrize(
    ("middle", "update", "evaluates_first"),
    [*((each, "auto", True) for each in FORWARDS), *((each, "host", False) for each in (counts, decides, queues))],
)
def test_a_forward_that_no_program_can_run_trains_as_natively(
    middle: Any, update: str, evaluates_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    found = trained(middle, update, evaluates_first)
    assert [each for each in caplog.messages if "Each function of Net is recorded by itself" in each]
    assert found == pytest.approx(trained(middle, "", evaluates_first), rel=1e-4, abs=1e-6)


def test_fused_updates_refuse_it_and_the_state_is_as_before() -> None:
    seeded()
    model = Net(counts)
    ipu_prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), config=IPUConfig(update="device"))
    with pytest.raises(ForwardError, match="changes Python values in every call"):
        model(torch.randn(6, 6))
    assert (model.calls, model.settings.calls, Net.made, COUNTS["calls"], COUNTS["seen"]) == (0, 0, 0, 0, set())


def test_numbers_that_it_computes_become_inputs(caplog: pytest.LogCaptureFixture) -> None:
    """The program is not compiled again for each."""
    trained(counts, "auto", False)
    compiled = [each for each in caplog.messages if "compiled again" in each]
    assert len(compiled) == 1
    assert "from now on they are inputs" in compiled[0]


class Failing(nn.Linear):
    """Counts its calls, and fails in every third."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls % 3 == 2:
            raise ValueError("no")
        return super().forward(x) * self.calls


def test_an_error_of_its_code_comes_in_the_call_that_has_it() -> None:
    def run(update: str) -> List[Any]:
        torch.manual_seed(0)
        model = Failing(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if update:
            ipu_prepare(model, optimizer, config=IPUConfig(update=update))
        found: List[Any] = []
        for _ in range(5):
            try:
                loss = model(torch.randn(2, 4)).pow(2).mean()
            except ValueError:
                found.append("failed")
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(pytest.approx(loss.item(), rel=1e-4))
        return [*found, model.calls]

    assert run("auto") == run("")


class Switched(nn.Sequential):
    """Reads a value from the moment on at which the loop asks for it."""

    reads = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        return out * float(out.detach().abs().mean()) if self.reads else out


@pytest.mark.parametrize(("update", "accumulates"), [("auto", True), ("auto", False), ("host", False)])
def test_it_turns_out_in_the_second_call_of_an_update(update: str, accumulates: bool) -> None:
    """The first call is a program's, with the values that its code has read."""

    def run(update: str) -> List[Any]:
        torch.manual_seed(0)
        model = Switched(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if update:
            ipu_prepare(model, optimizer, config=IPUConfig(update=update))
        found: List[Any] = []
        for number in range(4):
            optimizer.zero_grad()
            loss: Any = 0
            for second in range(2):
                model.reads |= (number, second) == (2, 1)
                loss = F.cross_entropy(model(torch.randn(6, 4)), torch.arange(6) % 3) + (0 if accumulates else loss)
                if accumulates or second:
                    loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found + [each.double().sum().item() for each in model.state_dict().values()]

    assert run(update) == pytest.approx(run(""), rel=1e-4, abs=1e-6)


def endless() -> Iterator[float]:
    while True:
        yield from (1.0, 2.0)


@pytest.mark.parametrize("make", [lambda: itertools.cycle([1.0, 2.0]), endless])
def test_a_place_of_an_iterator_cannot_be_put_back(make: Callable[[], Iterator[float]]) -> None:
    factors = make()
    model = Net(lambda net, h: h * next(factors))
    ipu_prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), config=IPUConfig(update="auto"))
    with pytest.raises(ForwardError, match="every call"):
        model(torch.randn(6, 6))


def test_checks_of_arguments_are_no_reads(caplog: pytest.LogCaptureFixture) -> None:
    """Their only consequence is an error, so a program leaves them out."""

    def checked(net: Any, h: torch.Tensor) -> torch.Tensor:
        assert not torch.isnan(h).any()
        return h

    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        assert trained(checked, "auto", True) == pytest.approx(trained(checked, "", True), rel=1e-4, abs=1e-6)
    assert not [each for each in caplog.messages if "recorded by itself" in each]
