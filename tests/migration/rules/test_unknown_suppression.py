"""Suppressions of rules that do not exist are reported."""

from __future__ import annotations

RULE = "unknown-suppression"


def test_misspelt(lines):
    """At the comment's line."""
    code = """
        x = 1
        y = 2  # ignite-ipu: ignore[cuda-devise, cuda-device]
    """
    assert lines(RULE, code) == [2]


def test_known_or_general(lines):
    """Real names, and comments without names."""
    code = """
        x = 1  # ignite-ipu: ignore
        y = 2  # ignite-ipu: ignore[cuda-device]
    """
    assert lines(RULE, code) == []
