"""Lists of names in messages, cut where they get long."""

from __future__ import annotations

from typing import Sequence

__all__ = ["listed"]


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first `most` of the names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
