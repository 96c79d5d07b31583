"""The bar that shows how far a compilation has come: tqdm's, as in PopTorch."""

from __future__ import annotations

import sys
import threading
from typing import Any, Optional

from tqdm import tqdm

_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"


class _Bar(tqdm):  # type: ignore[misc, unused-ignore]
    # Neither a thread that keeps the process waiting for IPUs, nor a lock shared with processes that are yet to come.
    monitor_interval = 0
    _lock = threading.RLock()


class CompilationProgressBar:
    """Draws progress on stderr.

    PopTorch's back end calls it with the steps done and their number; the last call ends the line. Where stderr is no
    terminal, compilations that take less than `quiet_seconds` are not mentioned.
    """

    def __init__(self, quiet_seconds: float = 0.0) -> None:
        self._quiet_seconds = quiet_seconds
        self._bar: Optional[Any] = None

    def __call__(self, progress: int, total: int) -> None:
        if self._bar is None:
            self._bar = _Bar(
                total=total,
                desc="Graph compilation",
                file=sys.stderr,
                bar_format=_FORMAT,
                mininterval=0,
                delay=0.0 if sys.stderr.isatty() else self._quiet_seconds,
            )
        if progress != self._bar.n:
            self._bar.update(progress - self._bar.n)
        if progress >= total:
            self.close()

    def close(self) -> None:
        """End the line; a failed compilation keeps its last progress."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
