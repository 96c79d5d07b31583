"""Output of commands: folded and coloured on a terminal, plain text everywhere else and without rich."""

from __future__ import annotations

import io
import itertools
import logging
import re
import sys

import pytest
from tqdm import tqdm

from ignite_ipu.cli.terminal import LineHandler, TextLine, following, plain, write_lines

LINES = [
    TextLine([("code.py", "bold")]),
    TextLine([("  1:1: ", ""), ("error", "red"), (": " + "a word " * 12, ""), ("[rule]", "dim")], 6),
    TextLine([]),
]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)


def written(stream):
    write_lines(LINES, stream)
    return stream.getvalue()


def test_a_log_line_leaves_a_bar_whole():
    """The bar is taken off the screen for the line, and drawn again."""
    terminal = Terminal()
    logger, handler = logging.getLogger("tests.terminal"), LineHandler(terminal)
    logger.addHandler(handler)
    with tqdm(total=3, file=terminal, ncols=40, desc="working") as bar:
        bar.update()
        logger.warning("something")
        bar.update()
    logger.removeHandler(handler)
    screen = [line.split("\r")[-1] for line in terminal.getvalue().split("\n")]
    assert "something" in screen and not any("something" in line and "working" in line for line in screen)


def test_a_pipe_gets_plain_text():
    assert written(io.StringIO()) == plain(LINES) + "\n"


def test_a_terminal_gets_colours_and_folded_lines(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "40")
    text = written(Terminal())
    assert "\033[31merror" in text
    lines = re.sub(r"\033\[[0-9;]*m", "", text).split("\n")
    assert all(len(line) <= 40 for line in lines)
    assert lines[1].startswith("  1:1: error: a word")
    assert lines[2].startswith("      a word") or lines[2].startswith("      word")
    assert " ".join(" ".join(lines).split()) == " ".join(plain(LINES).split())


def test_a_very_narrow_terminal_folds_by_itself(monkeypatch):
    monkeypatch.setenv("COLUMNS", "18")
    assert len(written(Terminal()).split("\n")) == len(LINES) + 1


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_a_terminal_without_colours_gets_plain_text(variable, monkeypatch):
    monkeypatch.setenv(variable, {"NO_COLOR": "1", "TERM": "dumb"}[variable])
    assert written(Terminal()) == plain(LINES) + "\n"


def test_without_rich_the_text_is_the_same(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert written(io.StringIO()) == plain(LINES) + "\n"


def test_brackets_and_names_of_styles_are_text():
    """File names and code are no markup."""
    stream = Terminal()
    write_lines([TextLine([("[red]x[0][/red] :smile:", "")])], stream)
    assert "[red]x[0][/red] :smile:" in stream.getvalue()


def followed(stream, monkeypatch):
    """Return the output while two items are followed."""
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(following(["a.py", "b.py"], "Checking")) == ["a.py", "b.py"]
    return stream.getvalue()


def test_progress_says_on_a_terminal_what_is_being_done_and_goes_away(monkeypatch):
    monkeypatch.setattr("ignite_ipu.cli.terminal._DELAY_SECONDS", 0)
    monkeypatch.setattr("tqdm.std.time", itertools.count().__next__)
    shown = followed(Terminal(), monkeypatch)
    assert "Checking: 0/2" in shown
    assert "a.py" in shown
    assert "Checking: 1/2" in shown
    assert shown.split("\r")[-2].strip() == ""


@pytest.mark.parametrize(("stream", "term"), [(io.StringIO(), "xterm"), (Terminal(), "dumb"), (Terminal(), "xterm")])
def test_progress_is_not_shown_in_a_pipe_or_in_the_first_second(stream, term, monkeypatch):
    monkeypatch.setenv("TERM", term)
    assert followed(stream, monkeypatch) == ""
