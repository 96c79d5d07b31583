"""Lists of names, written as text."""

from __future__ import annotations

from typing import FrozenSet, Tuple


def words(*lines: str) -> Tuple[str, ...]:
    """Return the words of some lines, in order."""
    return tuple(" ".join(lines).split())


def word_set(*lines: str) -> FrozenSet[str]:
    """Return the words of some lines, for comparisons."""
    return frozenset(words(*lines))
