"""Text that commands write for people: styled and folded to the terminal's width by rich, plain everywhere else.

Rich is an optional dependency (`pip install 'ignite-ipu[migrate]'`); without it, in pipes and files, and where NO_COLOR
forbids it, the same text is written without styles.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Iterable, Iterator, List, NamedTuple, Optional, Sequence, TextIO, Tuple, TypeVar

from ignite_ipu.cli.command import use_colour

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = ["Line", "following", "plain", "write_lines"]

Item = TypeVar("Item")
_FEW = 8


class Line(NamedTuple):
    """One line of text.

    Attributes:
        parts: Texts, each with the name of a style that rich knows, or "".
        indent: Columns that its continuation is set in by where the terminal is too narrow for it.
    """

    parts: Sequence[Tuple[str, str]]
    indent: int = 0


def plain(lines: Iterable[Line]) -> str:
    """Return lines without their styles."""
    return "\n".join("".join(text for text, _ in line.parts) for line in lines)


def write_lines(lines: Iterable[Line], stream: TextIO) -> None:
    """Write lines, each with a line end, as the stream deserves."""
    console = _console(stream) if use_colour(stream) else None
    if console is None:
        for line in lines:
            stream.write(plain([line]) + "\n")
        return
    from rich.text import Text

    # What is no terminal has no width to fold to; a log keeps its lines.
    folds = stream.isatty()
    for line in lines:
        text = Text.assemble(*line.parts)
        width = console.width - line.indent
        if not folds or text.cell_len <= console.width or width < 20:
            console.print(text, soft_wrap=True)
            continue
        first, *rest = _folded(text, console, width)
        console.print(first, soft_wrap=True)
        for part in rest:
            console.print(Text(" " * line.indent).append_text(part), soft_wrap=True)


def _console(stream: TextIO) -> Optional[Console]:
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    return Console(file=stream, force_terminal=True, highlight=False, emoji=False, markup=False)


def _folded(text: Text, console: Console, width: int) -> List[Text]:
    folded = list(text.wrap(console, width))
    for part in folded:
        part.rstrip()
    return folded


def following(items: Sequence[Item], what: str, stream: Optional[TextIO] = None) -> Iterator[Item]:
    """Yield the items, with a bar on a terminal that shows how far they have come and goes away at the end.

    Args:
        items: What is worked on.
        what: What is done to them, in a word or two.
        stream: Where the bar is shown; standard error by default.
    """
    stream = sys.stderr if stream is None else stream
    wanted = len(items) >= _FEW and stream.isatty() and use_colour(stream)
    console = _console(stream) if wanted else None
    if console is None:
        yield from items
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield from progress.track(items, description=what)
