"""The bar that shows how far a compilation has come."""

from __future__ import annotations

import sys
import time
from typing import Optional

WIDTH = 40


class CompilationProgressBar:
    """Draws progress on stderr, on one line of a terminal, or as two lines in a file.

    PopTorch's back end calls it with the steps done and their number; the last call ends the line.

    Args:
        quiet_seconds: In a file, do not mention compilations that take less than this.
    """

    def __init__(self, quiet_seconds: float = 0.0) -> None:
        self._quiet_seconds = quiet_seconds
        self._started: Optional[float] = None

    def __call__(self, progress: int, total: int) -> None:
        if self._started is None:
            self._started = time.monotonic()
        done = progress >= total
        first = progress == 0
        terminal = sys.stderr.isatty()
        slow = time.monotonic() - self._started >= self._quiet_seconds
        if terminal or (slow and (first or done)):
            filled = WIDTH * progress // max(total, 1)
            seconds = time.monotonic() - self._started
            bar = f"Graph compilation: |{'#' * filled}{'.' * (WIDTH - filled)}| {progress}/{total} [{seconds:.1f}s]"
            sys.stderr.write(f"\r{bar}" + ("\n" if done else "") if terminal else f"{bar}\n")
            sys.stderr.flush()
        if done:
            self._started = None
