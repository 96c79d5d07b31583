"""Names in messages: all of a few, the first of many."""

from __future__ import annotations

import pytest

from ignite_ipu.listing import listed


@pytest.mark.parametrize(
    ("names", "most", "text"),
    [
        (["a"], 3, "a"),
        (["a", "b", "c"], 3, "a, b, c"),
        (["a", "b", "c", "d", "e"], 3, "a, b, c and 2 more"),
        (("a", "b"), 1, "a and 1 more"),
    ],
)
def test_long_lists_are_cut(names, most, text):
    assert listed(names, most) == text
