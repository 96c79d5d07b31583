"""Eager mode of captured models: as while a program or `torch.jit` traces them, they run as ordinary modules."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Iterator

import torch

from ignite_ipu.program.module_state import REGISTRATIONS

__all__ = ["EAGER", "eagerly"]


class _Eager(threading.local):
    """A context in which captured models run as ordinary modules, in this thread; they do in `torch.jit.trace`, too."""

    _depth = 0

    @property
    def is_on(self) -> bool:
        """True if captured models run eagerly now."""
        return self._depth > 0 or torch._C._get_tracing_state() is not None

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *error: Any) -> None:
        self._depth -= 1


EAGER = _Eager()


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Let captured models run as ordinary modules in the `with` block.

    What they register themselves while they are traced, such as a cache, is part of the trace and does not count.
    """
    with EAGER, REGISTRATIONS.uncounted():
        yield
