"""Observers of an executor at work: the timelines that are wanted, the progress bar, and the reader of its errors."""

from __future__ import annotations

import contextlib
import time
from typing import Callable, Iterator, Optional

from ignite_ipu.emulator import profiling
from ignite_ipu.emulator.device.device import Meter
from ignite_ipu.emulator.errors import Error, cut_long_message
from ignite_ipu.emulator.logs import limit_repeats
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.options.progress_bar import CompilationProgressBar
from ignite_ipu.emulator.runtime.program import DeviceProgram
from ignite_ipu.emulator.runtime.report import ProgramReport

_QUIET_SECONDS = 1.0
Advance = Callable[[int, int], None]


class Observation:
    """Observers of one executor's calls."""

    def __init__(self, options: Options, training_mode: bool) -> None:
        self._options = options
        # The model's flag names the channel whatever the wrapper is for, as in PopTorch.
        self._channel = profiling.Channel(f"poptorch.{'training' if training_mode else 'inference'}Model")
        self.compilation_seconds = 0.0
        self.report: Optional[ProgramReport] = None  # the compiled program's, if one is asked for

    @property
    def is_off(self) -> bool:
        """True if no timeline is wanted, so that errors are all there is to observe."""
        return self.report is None and not self._channel.is_recorded

    @contextlib.contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Put the `with` block on the timelines that are wanted, and the text of a very long error into a file."""
        report = self.report
        with self._channel.tracepoint(what), contextlib.nullcontext() if report is None else report.host_call(what):
            try:
                yield
            except Error as error:
                cut_long_message(error, self._options.log_dir)
                raise

    def write_report(self, program: DeviceProgram, meter: Meter) -> None:
        if program.report is not None:
            program.report.write(program.memory(), meter.own, self.compilation_seconds)

    @contextlib.contextmanager
    def progress(self) -> Iterator[Advance]:
        """Show the progress of the `with` block; yields a function to call with (steps done, number of steps)."""
        if not self._options._show_compilation_progress_bar:
            yield lambda done, total: None
            return
        with contextlib.closing(CompilationProgressBar(_QUIET_SECONDS)) as bar:
            bar(0, 2)
            yield bar

    @contextlib.contextmanager
    def compilation(self) -> Iterator[None]:
        limit_repeats(self._options.max_repeat_logs)
        started = time.perf_counter()
        with self.call("modelCompilation"):
            yield
        self.compilation_seconds = time.perf_counter() - started
        if self.report is not None:
            self.report.add("modelCompilation", started)
