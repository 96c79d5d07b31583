"""Whether captured models run as the ordinary modules they are, as they do while a program is traced."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Iterator

from ignite_ipu.registrations import REGISTRATIONS

__all__ = ["NATIVE", "natively"]


class _Native(threading.local):
    """A context in which captured models run as ordinary modules, in this thread.

    Attributes:
        depth: How often it is entered; captured models run natively while that is not 0.
    """

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *error: Any) -> None:
        self.depth -= 1


NATIVE = _Native()


@contextlib.contextmanager
def natively() -> Iterator[None]:
    """Let captured models run as ordinary modules in the `with` block.

    What they register themselves while they are traced, such as a cache, is part of the trace and does not count.
    """
    with NATIVE, REGISTRATIONS.uncounted():
        yield
