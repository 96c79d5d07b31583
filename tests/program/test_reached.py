"""Walks through graphs: of anything, and of autograd's functions."""

from __future__ import annotations

import torch

from ignite_ipu.program.reached import reached
from ignite_ipu.program.tensors.differentiated import differentiated

ROADS = {"a": "bc", "b": "d", "c": "da", "d": "", "e": "a"}


def test_everything_is_reached_once() -> None:
    """Also in a circle."""
    asked = []

    def following(place: str) -> str:
        asked.append(place)
        return ROADS[place]

    assert next(iter(reached("a", following))) == "a" and set(reached("a", following)) == set("abcd")
    assert sorted(asked) == sorted("abcd" * 2)
    assert set(reached("de", ROADS.__getitem__)) == set("abcde")


def test_a_backward_pass_reaches_leaves_that_require_gradients() -> None:
    """As autograd says itself, which fills in their gradients."""
    used, twice, apart, constant = (torch.ones(2, requires_grad=number < 3) for number in range(4))
    loss = (used * twice + twice * constant).sum()
    assert {id(each) for each in differentiated([loss])} == {id(used), id(twice)}
    loss.backward()
    assert used.grad is not None and twice.grad is not None and apart.grad is None
    assert differentiated([constant]) == [] and differentiated([apart])[0] is apart
