"""Every exception of the library is an `IPUError`, and the tree drawn in the module is the one there is."""

from __future__ import annotations

import inspect
import re

import pytest

import ignite_ipu
from ignite_ipu import errors

CLASSES = {name: each for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, Exception)}
DRAWN = re.findall(r"^([ │├└─]*)(\w+)(?:.*\((\w+)\))?", errors.__doc__ or "", re.MULTILINE)
DRAWN = [(len(indent), name, other) for indent, name, other in DRAWN if name in CLASSES]


def test_every_exception_is_drawn_below_its_base():
    """Also with the class of Python's that it is."""
    above = {}
    for indent, name, other in DRAWN:
        above[indent] = CLASSES[name]
        base = above[max((i for i in above if i < indent), default=indent)]
        assert issubclass(CLASSES[name], base) and (not other or other in {k.__name__ for k in CLASSES[name].__mro__})
    assert sorted(name for _, name, _ in DRAWN) == sorted(CLASSES)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_users_catch_what_is_ours_by_one_name(name):
    """`except ignite_ipu.IPUError` catches it."""
    assert issubclass(CLASSES[name], ignite_ipu.IPUError)


def test_long_lists_of_names_are_cut():
    """The first ones, and how many more there are."""
    assert errors.listed(["a", "b", "c"]) == "a, b, c"
    assert errors.listed(["a", "b", "c", "d"]) == "a, b, c and 1 more"
