"""Numbers as people read them."""

from __future__ import annotations

from typing import Sequence


def bytes_text(count: float) -> str:
    """Return a size with a decimal prefix and three digits, such as `720 MB`."""
    return _scaled(count, ("B", "kB", "MB", "GB", "TB"))


def seconds_text(seconds: float) -> str:
    """Return a time with a decimal prefix and three digits, such as `1.25 ms`."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return _scaled(seconds * 1e9, ("ns", "us", "ms", "s"))


def _scaled(value: float, names: Sequence[str]) -> str:
    place = 0
    while place < len(names) - 1 and abs(value) >= 999.5:
        value, place = value / 1000, place + 1
    return f"{value:.3g} {names[place]}"
