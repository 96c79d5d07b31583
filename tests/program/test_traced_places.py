"""Refusals of traced code name the function, and the line that changes a value."""

from __future__ import annotations

import random

import pytest
from torch import nn

from ignite_ipu.capabilities.traced import STATE
from ignite_ipu.program.guards.python_state import named_by
from ignite_ipu.program.traced_places import PLACE, changing_place, function_at, refusal_at, split_place

SEEN = {"calls": 0}


def count() -> int:
    SEEN["calls"] += 1
    return SEEN["calls"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x):
        def scale():
            self.calls += 1
            return x * self.calls

        return scale() * random.random() * count()


FIRST = Net.forward.__code__.co_firstlineno


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (FIRST, "Net.forward"),
        (FIRST + 2, "scale"),
        (FIRST + 5, "Net.forward"),
        (count.__code__.co_firstlineno + 1, "count"),
        (1, ""),
    ],
)
def test_the_innermost_function_around_a_line(number, name):
    assert function_at(__file__, number) == name


@pytest.mark.parametrize(
    ("changed", "number"),
    [
        (["calls"], FIRST + 2),
        (["the state of random: draw with torch.rand"], FIRST + 5),
        (["SEEN"], count.__code__.co_firstlineno + 1),
        (["the place of an iterator"], None),
    ],
)
def test_the_line_that_changes_a_value(changed, number):
    """Of a constructor none: it makes the object."""
    assert changing_place(named_by(Net()), changed) == (None if number is None else (__file__, number))


def test_a_refusal_begins_with_the_line_if_there_is_one():
    place = (__file__, FIRST + 5)
    assert split_place(refusal_at(STATE, place, "", "calls")) == (place, STATE.refusal("Net.forward", "calls"))
    assert split_place(refusal_at(STATE, None, "The forward")) == (None, STATE.refusal("The forward"))


def test_a_line_within_a_message_is_not_its_beginning():
    text = f"A tensor was used at {__file__}:12 and changed afterwards"
    assert split_place(text) == (None, text)
    assert split_place(f"Doubled.apply() at {__file__}:12: a message")[0] is None


def test_places_in_messages():
    """A run puts the line in front of a message only if it does not name it."""
    assert PLACE.findall("At /a/b.py:60, weight of the model was replaced") == [("/a/b.py", "60")]
    assert PLACE.findall("It is used at /a/b.py:7. That at c.py:8 is not") == [("/a/b.py", "7"), ("c.py", "8")]
