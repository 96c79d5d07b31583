"""The two loggers of PopTorch: the one of its Python layer and the one of its back end.

Importing this module gives both a handler and the level that `POPTORCH_LOG_LEVEL` names, as importing PopTorch does.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections import Counter
from types import TracebackType
from typing import Dict, Optional, TextIO, Type, Union

from tqdm import tqdm

logger = logging.getLogger("poptorch::python")
backend_logger = logging.getLogger("poptorch::cpp")

_PYTHON_LEVELS: Dict[str, int] = {
    **dict.fromkeys(("TRACE_ALL", "TRACE", "DEBUG", "DEBUG_IR"), logging.DEBUG),
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "OFF": logging.CRITICAL,
}
_NAMES: Dict[int, str] = {0: "TRACE", 1: "DEBUG", 2: "INFO", 3: "WARN", 4: "ERR", 6: "OFF"}
_COLOURS: Dict[int, str] = {
    logging.DEBUG: "\033[36m",
    logging.INFO: "\033[32m",
    logging.WARNING: "\033[33m\033[1m",
    logging.ERROR: "\033[31m\033[1m",
    logging.CRITICAL: "\033[1m\033[41m",
}
_RESET = "\033[m"


def setLogLevel(level: Union[str, int]) -> None:
    """Show the messages of `level` and above.

    Args:
        level: `"TRACE"`, `"DEBUG"`, `"INFO"`, `"WARN"`, `"ERR"` or `"OFF"`, or 0, 1, 2, 3, 4 or 6 for the same.

    Raises:
        ValueError: `level` is none of these.
    """
    for each in (logger, backend_logger):
        each.setLevel(python_level(level))


def python_level(level: Union[str, int]) -> int:
    """Return the level of Python's `logging` for one of `setLogLevel`."""
    if isinstance(level, int) and level not in _NAMES:
        known = ", ".join(f"{number} ({name})" for number, name in _NAMES.items())
        raise ValueError(f"Invalid log level integer {level}: choose one of {known}.")
    name = _NAMES[level] if isinstance(level, int) else level
    if name not in _PYTHON_LEVELS:
        raise ValueError(f"Unknown log level {level!r}: choose one of {', '.join(_NAMES.values())} (case matters).")
    return _PYTHON_LEVELS[name]


def log_uncaught(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
    """Log an uncaught exception at critical level; made to be `sys.excepthook`."""
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        logger.critical("".join(traceback.format_exception(kind, error, trace)))


class _Formatter(logging.Formatter):
    """Writes `[hh:mm:ss.mmm] [logger] [level] text`, with the level in colour if `coloured`."""

    def __init__(self, coloured: bool) -> None:
        super().__init__("[%(asctime)s.%(msecs)03d] [%(name)s] [%(level)s] %(message)s", "%H:%M:%S")
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        record.level = f"{_COLOURS.get(record.levelno, '')}{level}{_RESET}" if self._coloured else level
        return super().format(record)


class _StandardStream(logging.Handler):
    """Writes to whatever `sys.stderr` (or `sys.stdout`) is at the time, so that redirecting it works."""

    def __init__(self, name_in_sys: str) -> None:
        super().__init__()
        self._name_in_sys = name_in_sys

    def emit(self, record: logging.LogRecord) -> None:
        try:
            stream: TextIO = getattr(sys, self._name_in_sys)
            # A bar that is drawn on the stream makes room for the line, and is drawn again below it.
            with tqdm.external_write_mode(file=stream, nolock=True):
                stream.write(_Formatter(stream.isatty()).format(record) + "\n")
                stream.flush()
        except Exception:
            self.handleError(record)


class _RepeatLimit(logging.Filter):
    """Drops a message already shown `limit` times since the last restart, and logs that once."""

    def restart(self, limit: int) -> None:
        self._limit = limit
        self._shown: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        self._shown[text] += 1
        if self._shown[text] == self._limit:
            record.msg = f"{text} (shown {self._limit} times: not shown again, see Options.maxRepeatLogs)"
            record.args = ()
        return self._shown[text] <= self._limit


_repeats = _RepeatLimit()
_repeats.restart(4)
limit_repeats = _repeats.restart
_destination = os.environ.get("POPTORCH_LOG_DEST", "stderr")
_handler: logging.Handler = _StandardStream(_destination)
if _destination not in ("stdout", "stderr"):
    _handler = logging.FileHandler(_destination, delay=True, encoding="utf-8")
    _handler.setFormatter(_Formatter(coloured=False))

setLogLevel(os.environ.get("POPTORCH_LOG_LEVEL", "WARN"))
logger.addHandler(_StandardStream("stderr"))
backend_logger.addHandler(_handler)
backend_logger.addFilter(_repeats)
