"""What belongs to the whole process is used by one thread after the other."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Iterator

__all__ = ["Turn"]


class Turn:
    """A re-entrant lock; a process that was forked while another thread held it finds it free."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the thread whose turn it is, and have it in the `with` block."""
        with self._lock:
            yield
