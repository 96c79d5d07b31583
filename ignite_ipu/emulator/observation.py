"""Who watches an executor at work: the timelines that are wanted, the progress bar, and the reader of its errors."""

from __future__ import annotations

import contextlib
import time
from typing import Callable, Iterator, Optional

from ignite_ipu.emulator import profiling
from ignite_ipu.emulator.errors import Error, cut_long_message
from ignite_ipu.emulator.logs import limit_repeats
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.options.progress_bar import CompilationProgressBar
from ignite_ipu.emulator.report import Report

_QUIET_SECONDS = 1.0
Advance = Callable[[int, int], None]


class Observation:
    """What one executor's calls are shown to.

    Args:
        options: The executor's own.
        training_mode: The model's `training` flag, which names the channel whatever the wrapper is for, as in PopTorch.

    Attributes:
        compilation_seconds: How long the last compilation took.
        report: The automatic report of the compiled program; None when none is asked for.
    """

    def __init__(self, options: Options, training_mode: bool) -> None:
        self._options = options
        self._channel = profiling.Channel(f"poptorch.{'training' if training_mode else 'inference'}Model")
        self.compilation_seconds = 0.0
        self.report: Optional[Report] = None

    @property
    def is_off(self) -> bool:
        """Whether no timeline is wanted, so that errors are all there is to observe."""
        return self.report is None and not self._channel.is_recorded

    def cut(self, error: Error) -> None:
        """Put the text of a very long error into a file."""
        cut_long_message(error, self._options.log_dir)

    @contextlib.contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Put the `with` block on the timelines that are wanted, and the text of a very long error into a file."""
        report = self.report
        with self._channel.tracepoint(what), contextlib.nullcontext() if report is None else report.host_call(what):
            try:
                yield
            except Error as error:
                self.cut(error)
                raise

    @contextlib.contextmanager
    def compilation(self) -> Iterator[Advance]:
        """Show the progress of the compilation in the `with` block; yields what is told (steps done, of so many)."""
        bar = CompilationProgressBar(_QUIET_SECONDS) if self._options._show_compilation_progress_bar else None
        progress: Advance = bar if bar is not None else lambda done, total: None
        progress(0, 2)
        limit_repeats(self._options.max_repeat_logs)
        started = time.perf_counter()
        try:
            with self.call("modelCompilation"):
                yield progress
        except BaseException:
            if bar is not None:
                bar.close()
            raise
        ended = time.perf_counter()
        self.compilation_seconds = ended - started
        if self.report is not None:
            self.report.add("modelCompilation", started, ended)
