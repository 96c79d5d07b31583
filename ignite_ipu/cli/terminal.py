"""Text that commands write for people: styled and folded to the terminal's width by rich, plain everywhere else.

Rich is an optional dependency (`pip install 'ignite-ipu[migrate]'`); without it, in pipes and files, and where NO_COLOR
forbids it, the same text is written without styles.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence, TextIO, Tuple, TypeVar

Item = TypeVar("Item")
_DELAY_SECONDS = 1.0
_FORMAT = "{desc}: {n_fmt}/{total_fmt} |{bar}| {elapsed}<{remaining}{postfix}"


class TextLine(NamedTuple):
    """One line of texts, each with the name of a style that rich knows, or "".

    Where the terminal is too narrow for it, its continuation is set in by `indent` columns.
    """

    parts: Sequence[Tuple[str, str]]
    indent: int = 0


def use_colour(stream: TextIO) -> bool:
    """Return whether to colour output: NO_COLOR forbids it, FORCE_COLOR demands it; otherwise for a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def plain(lines: Iterable[TextLine]) -> str:
    """Return lines without their styles."""
    return "\n".join("".join(text for text, _ in line.parts) for line in lines)


def write_lines(lines: Iterable[TextLine], stream: TextIO) -> None:
    """Write lines, each with a line end, as the stream deserves."""
    styled = use_colour(stream)
    if styled:
        try:
            from rich.console import Console
            from rich.text import Text
        except ModuleNotFoundError:
            styled = False
    if not styled:
        stream.writelines(f"{plain([line])}\n" for line in lines)
        return
    console = Console(file=stream, force_terminal=True, highlight=False, emoji=False, markup=False)
    for line in lines:
        text = Text.assemble(*line.parts)
        width = console.width - line.indent
        parts = [text]
        # Other streams than a terminal have no width to fold to; a log keeps its lines.
        if stream.isatty() and text.cell_len > console.width and width >= 20:
            parts = list(text.wrap(console, width))
        for number, part in enumerate(parts):
            part.rstrip()
            console.print(Text(" " * line.indent if number else "").append_text(part), soft_wrap=True)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as text, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


class LineHandler(logging.StreamHandler):  # type: ignore[type-arg, unused-ignore]
    """Writes log records as lines; a bar that is drawn on the stream makes room, and is drawn again below them."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        with tqdm.external_write_mode(file=self.stream, nolock=True):
            super().emit(record)


class Progress:
    """A bar on a terminal that shows after a second the progress and the current item; none elsewhere.

    It is shown on standard error unless another stream is given. `what` is the work, in a word or two.
    """

    def __init__(self, what: str, total: int, stream: Optional[TextIO] = None) -> None:
        stream = sys.stderr if stream is None else stream
        self._begun = 0
        self._bar: Any = None
        if not stream.isatty() or os.environ.get("TERM") == "dumb":
            return
        from tqdm import tqdm

        # Without the thread that watches bars, which outlives them; every part checks by itself whether it is time.
        kind = type("Bar", (tqdm,), {"monitor_interval": 0})
        shown = {"delay": _DELAY_SECONDS, "miniters": 0, "leave": False, "dynamic_ncols": True}
        self._bar = kind(total=total, desc=what, file=stream, bar_format=_FORMAT, **shown)

    def show(self, doing: str) -> None:
        """Show the current part: all that were shown before are done."""
        if self._bar is not None:
            self._bar.n = self._begun
            self._bar.set_postfix_str(doing, refresh=False)
            self._bar.update(0)
        self._begun += 1

    def clear(self) -> None:
        """Take the bar off the screen until the next part, so that others may write there."""
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.close()


def following(items: Sequence[Item], what: str, name: Callable[[Item], str] = str) -> Iterator[Item]:
    """Yield the items, while a bar shows the progress, the action and the name of each."""
    progress = Progress(what, len(items))
    try:
        for item in items:
            progress.show(name(item))
            yield item
    finally:
        progress.close()
