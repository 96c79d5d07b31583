"""Runs the programs one after the other; none of them stops the others, or keeps IPUs from them."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Callable, Iterator, List
from unittest import mock

from ignite.utils import manual_seed

from ignite_ipu import backend
from ignite_ipu.program.forward.randomness import draws_put_back
from ignite_ipu.selftest.bench import Bench
from ignite_ipu.selftest.promises import FAILED, SKIPPED, Promise, PromiseOutcome, Skipped

# The root, where all others end, and those of PopTorch, which write by themselves.
_LOGGERS = ("", "poptorch::python", "poptorch::cpp")
_DEFAULT_OPTIONS = "POPTORCH_DEFAULT_OPTIONS"
_SEED = 1
_REASON_LENGTH = 300


def run(promise: Promise, ipus: int) -> PromiseOutcome:
    """Run one program and give its IPUs back; there are `ipus` IPUs."""
    if promise.needs_emulator and not backend.is_emulator():
        return PromiseOutcome(promise, SKIPPED, "only the emulator can be told to fail so")
    if promise.ipus > ipus:
        needed = f"needs {promise.ipus} IPU{'s' if promise.ipus > 1 else ''} at once, and there are {ipus}"
        return PromiseOutcome(promise, SKIPPED, needed)
    outcome = PromiseOutcome(promise)
    started = time.perf_counter()
    quiet = _heard(outcome), _bars_hidden()
    with tempfile.TemporaryDirectory(prefix="ignite-ipu-selftest-") as folder, draws_put_back(), quiet[0], quiet[1]:
        manual_seed(_SEED)
        _try_on_a_bench(promise, outcome, Path(folder))
        # An executor and its optimizer hold each other, and the IPUs with them.
        gc.collect()
    outcome.seconds = time.perf_counter() - started
    return outcome


def _try_on_a_bench(promise: Promise, outcome: PromiseOutcome, folder: Path) -> None:
    bench = Bench(folder)
    _try(lambda: promise.program(bench), outcome, "")
    _try(bench.clear, outcome, "giving the IPUs back: ")


def _try(call: Callable[[], None], outcome: PromiseOutcome, doing: str) -> None:
    """Call, and record exceptions: of several errors the first is the reason."""
    try:
        call()
    except Skipped as reason:
        outcome.result, outcome.reason = SKIPPED, str(reason)
    except (Exception, SystemExit) as error:
        text = traceback.format_exc()
        # A traceback must not keep failed programs alive, nor the IPUs that its frames hold.
        traceback.clear_frames(error.__traceback__)
        if outcome.result == FAILED:
            outcome.messages.append(text)
        else:
            outcome.result, outcome.reason, outcome.traceback = FAILED, doing + _one_line(error), text


def _one_line(error: BaseException) -> str:
    text, name = " ".join(str(error).split()), type(error).__name__
    line = text if isinstance(error, AssertionError) and text else f"{name}: {text}" if text else name
    return line if len(line) <= _REASON_LENGTH else f"{line[: _REASON_LENGTH - 3]}..."


@contextlib.contextmanager
def _heard(outcome: PromiseOutcome) -> Iterator[None]:
    """Record warnings and the log, in place of writing them between the rows of the table."""
    notes = _Notes(outcome.messages)
    loggers = [(each, each.handlers) for each in map(logging.getLogger, _LOGGERS)]
    for logger, _ in loggers:
        logger.handlers = [] if logger.propagate and logger is not logging.root else [notes]
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            yield
        outcome.messages += [f"{each.category.__name__}: {each.message}" for each in caught]
    finally:
        for logger, handlers in loggers:
            logger.handlers = handlers


@contextlib.contextmanager
def _bars_hidden() -> Iterator[None]:
    """Hide PopTorch's bars, which would be drawn over the table and its own bar, in all options made meanwhile."""
    given = json.loads(os.environ.get(_DEFAULT_OPTIONS) or "{}")
    hidden = json.dumps({**given, "showCompilationProgressBar": False})
    with mock.patch.dict(os.environ, {_DEFAULT_OPTIONS: hidden}):
        yield


class _Notes(logging.Handler):
    def __init__(self, messages: List[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(f"{record.levelname} {record.name}: {record.getMessage()}")
