"""The two loggers: levels, format, destinations, repeats."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Callable, Iterator

import pytest

from ignite_ipu.emulator import logs
from tests.processes import Processes


@pytest.fixture(autouse=True)
def _level_is_restored() -> Iterator[None]:
    level = logs.logger.level
    yield
    logs.logger.setLevel(level)
    logs.backend_logger.setLevel(level)
    logs.limit_repeats(4)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("TRACE", logging.DEBUG),
        ("DEBUG", logging.DEBUG),
        ("INFO", logging.INFO),
        ("WARN", logging.WARNING),
        ("ERR", logging.ERROR),
        ("OFF", logging.CRITICAL),
        (0, logging.DEBUG),
        (1, logging.DEBUG),
        (2, logging.INFO),
        (3, logging.WARNING),
        (4, logging.ERROR),
        (6, logging.CRITICAL),
    ],
)
def test_levels_by_name_and_by_number(level: object, expected: int) -> None:
    logs.setLogLevel(level)  # type: ignore[arg-type]
    assert logs.logger.level == logs.backend_logger.level == expected


@pytest.mark.parametrize("level", [5, 7, -1])
def test_other_numbers_are_no_levels(level: int) -> None:
    with pytest.raises(ValueError, match="Invalid log level integer"):
        logs.setLogLevel(level)


@pytest.mark.parametrize("level", ["VERBOSE", "warn", ""])
def test_other_names_are_no_levels(level: str) -> None:
    with pytest.raises(ValueError, match="Unknown log level"):
        logs.setLogLevel(level)


def test_a_line_has_time_logger_and_level(capsys: pytest.CaptureFixture[str]) -> None:
    logs.logger.warning("%d IPUs", 3)
    line = capsys.readouterr().err
    assert re.fullmatch(r"\[\d\d:\d\d:\d\d\.\d{3}\] \[poptorch::python\] \[warning\] 3 IPUs\n", line)


def test_a_terminal_shows_the_level_in_colour(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    logs.logger.error("x")
    assert "[\033[31m\033[1merror\033[m] x" in capsys.readouterr().err


def test_the_back_end_stops_repeating_itself(capsys: pytest.CaptureFixture[str]) -> None:
    logs.limit_repeats(2)
    for _ in range(5):
        logs.backend_logger.warning("slow host")
    logs.backend_logger.warning("another")
    lines = capsys.readouterr().err.splitlines()
    assert [line.count("slow host") for line in lines] == [1, 1, 0]
    assert "not shown again" in lines[1]


def test_without_a_limit_it_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    logs.limit_repeats(2**64 - 1)
    for _ in range(20):
        logs.backend_logger.warning("slow host")
    assert capsys.readouterr().err.count("slow host") == 20


def test_an_uncaught_exception_is_logged_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise KeyError("weights")
    except KeyError as error:
        logs.log_uncaught(KeyError, error, error.__traceback__)
    text = capsys.readouterr().err
    assert "[critical]" in text
    assert "KeyError: 'weights'" in text


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(processes: Processes) -> Run:
    """Run code in a process with some environment variables."""

    def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        words = ["-c", f"from ignite_ipu.emulator import logs\n{code}"]
        return processes.run(words, env={**os.environ, **environment})

    return run


def test_the_environment_sets_the_first_level(run: Run) -> None:
    done = run("print(logs.logger.level)", POPTORCH_LOG_LEVEL="ERR")
    assert done.stdout == "40\n"


def test_a_wrong_level_in_the_environment_fails_the_import(run: Run) -> None:
    done = run("", POPTORCH_LOG_LEVEL="LOUD")
    assert done.returncode == 1
    assert "ValueError: Unknown log level 'LOUD'" in done.stderr


def test_the_back_end_may_log_into_a_file_and_python_does_not(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "native.log"
    done = run("logs.backend_logger.error('native'); logs.logger.error('mine')", POPTORCH_LOG_DEST=str(file))
    assert "[poptorch::cpp] [error] native" in file.read_text()
    assert "mine" in done.stderr
    assert "native" not in done.stderr
