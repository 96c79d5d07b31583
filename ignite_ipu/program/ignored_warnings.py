"""Warnings that are ignored for a while, without showing others again."""

from __future__ import annotations

import contextlib
import re
import warnings
from typing import Any, Iterator


@contextlib.contextmanager
def ignored_warnings(message: str = "") -> Iterator[None]:
    """Ignore warnings whose message matches a pattern, in the `with` block.

    `warnings.catch_warnings` makes Python forget the warnings that it has shown. In a loop, they would be shown again.
    """
    filters: Any = warnings.filters
    ignored = ("ignore", re.compile(message, re.IGNORECASE), Warning, None, 0)
    filters.insert(0, ignored)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # code inside has replaced the filters
            filters.remove(ignored)
