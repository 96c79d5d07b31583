"""State that calls on the host have changed is as it was before them."""

from __future__ import annotations

import collections
import itertools
import random
from typing import Any, List

import numpy as np
import pytest
import torch
from torch import nn

from ignite_ipu.program.forward.state_before import StateBefore

TOTALS = {"calls": [0]}


class Slotted:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


class Net(nn.Module):
    made = 0

    def __init__(self, write: Any) -> None:
        super().__init__()
        self.layer, self.write = nn.Linear(2, 2), write
        self.register_buffer("mean", torch.zeros(2))
        self.calls, self.found, self.slotted = 0, {"sizes": [{1}]}, Slotted()
        self.recent, self.table, self.counts = collections.deque([1], maxlen=2), torch.zeros(2), np.zeros(2)
        self.generators = [random.Random(1), np.random.default_rng(1), np.random.RandomState(1)]
        self.own = torch.Generator().manual_seed(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.write(self)
        return self.layer(x)


def number(net: Any) -> None:
    net.calls += 1


def new(net: Any) -> None:
    net.later = net.calls


def nested(net: Any) -> None:
    net.found["sizes"][0].add(2)
    net.found["more"] = []


def slotted(net: Any) -> None:
    net.slotted.calls += 1


def recent(net: Any) -> None:
    net.recent.extend([2, 3])


def array(net: Any) -> None:
    net.counts += 1


def tensor(net: Any) -> None:
    net.table += 1


def buffer(net: Any) -> None:
    net.mean += 1


def memory(net: Any) -> None:
    net.mean.data = torch.ones(2)


def of_class(net: Any) -> None:
    Net.made += 1


def of_module(net: Any) -> None:
    TOTALS["calls"][0] += 1


def given(net: Any, memo: Any = [0], *, named: Any = {"calls": 0}) -> None:  # noqa: B006
    memo[0] += 1
    named["calls"] += 1


def draws(net: Any) -> None:
    for each in net.generators:
        each.random()
    torch.rand(1, generator=net.own)
    torch.rand(1)
    random.random()
    np.random.rand()


def seen(net: Any) -> List[Any]:
    """Return all of a model's state, comparable."""
    own = {name: repr(value) for name, value in vars(net).items() if not name.startswith("_")}
    states = [net.generators[0].getstate(), repr(net.generators[1].bit_generator.state), net.own.get_state().tolist()]
    states += [repr(net.generators[2].get_state()), random.getstate(), repr(np.random.get_state())]
    held = [net.slotted.calls, *net.mean.tolist(), *net.table.tolist(), *net.counts]
    defaults = repr([given.__defaults__, given.__kwdefaults__])
    return [own, states, held, net.made, repr(TOTALS), defaults, torch.get_rng_state().tolist()]


@pytest.mark.parametrize(
    "write",
    [number, new, nested, slotted, recent, array, tensor, buffer, memory, of_class, of_module, given, draws],
)
def test_it_is_put_back(write: Any) -> None:
    net = Net(write)
    before, state = seen(net), StateBefore(net)
    with torch.no_grad():
        net(torch.ones(1, 2))
    assert seen(net) != before
    assert state.put_back() == []
    assert seen(net) == before


@pytest.mark.parametrize("iterator", [itertools.count(), itertools.cycle([1]), iter([1, 2, 3]), (n for n in range(3))])
def test_places_of_iterators_are_named(iterator: Any) -> None:
    """They cannot be put back."""
    net = Net(lambda _: next(iterator))
    state = StateBefore(net)
    net(torch.ones(1, 2))
    assert any("the place of an iterator" in each for each in state.put_back())
