"""Files that cannot be read as Python are reported under one rule."""

from __future__ import annotations

RULE = "unreadable-source"


def test_syntax_error(lines):
    """At its line."""
    code = """
        x = 1
        y = (
    """
    assert lines(RULE, code) == [2]


def test_python(lines):
    """Anything that parses is fine."""
    code = """
        x = 1
    """
    assert lines(RULE, code) == []
