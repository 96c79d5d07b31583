"""IPython's own syntax in a notebook's cell, which becomes Python to be read and rewritten, and is restored afterwards.

Shell commands, questions and magics that run no Python of the cell become comments. The code that `%time` and its like
run is code of the program: `%time x = f()` becomes `x = f()` with the magic behind it, in a comment. The same holds for
cells: the cell under `%%time` is one as any other, and the text under `%%bash` is none.
"""

from __future__ import annotations

import ast
import re
from typing import List, Optional, Sequence

from ignite_ipu.errors import SourceError

_CELL_MAGIC = re.compile(r"%%\s*([\w!]*)")
# Their cells are other languages, files and other processes; the cell of any other magic is Python if it reads as such.
_ELSEWHERE = re.compile(
    r"!|html|svg|r|(append|write)?file|bash|bigquery|cmd|cython|javascript|js|julia|latex|markdown|mermaid|perl|pypy"
    r"|python[23]?|ruby|script|sh|shell|sql|sx|system",
    re.IGNORECASE,
)
_RUN_PYTHON = frozenset(("capture", "debug", "prun", "time", "timeit"))

_MAGIC = re.compile(r"""^(?P<indent>\s*)(?P<code>[%!?].*|[^#"']*[\w*\])]\?\??)$""")
_ASSIGNED_MAGIC = re.compile(r"^(?P<indent>\s*)(?P<code>[\w.,\s]+=\s*[%!].*)$")
_TARGET = r"\s*(?:[\w.,\s]+=\s*)?"
# The options are those of %time, %timeit, %prun and %memit.
_RUNNING_MAGIC = re.compile(
    rf"^(?P<target>{_TARGET})"
    r"(?P<magic>%%?(?:time|timeit|prun|memit)(?:\s+(?:-[nrpRtl]\s*\d+|-[sTDl]\s+\S+|-[a-zA-Z]+|--[\w-]+))*\s+)"
    r"(?P<code>\S[^\r]*)$"
)

_HIDDEN = "# ignite-ipu magic: "
_HIDDEN_STATEMENT = f"pass  {_HIDDEN}"
_IN_FRONT = "  # ignite-ipu magic in front: "
_ASSIGNED = "  # ignite-ipu magic behind the equals sign: "


def hide_magics(source: str) -> Optional[List[str]]:
    """Return a cell's lines as Python, one for each; None for a cell that is not the notebook's Python.

    A cell that is Python as it stands is left so: a line of Python, too, may begin with `%` or end in `?`.
    """
    lines = source.split("\n")
    if parses(source):
        return lines
    named = _CELL_MAGIC.match(source.lstrip())
    if named is not None and _ELSEWHERE.fullmatch(named.group(1)):
        return None
    # An indented block of nothing but magics needs a statement.
    for mark in (_HIDDEN, _HIDDEN_STATEMENT):
        hidden = _hidden(lines, mark)
        if parses("\n".join(hidden)):
            return hidden
    return None if named is not None and named.group(1) not in _RUN_PYTHON else _hidden(lines, _HIDDEN)


def show_magics(lines: Sequence[str]) -> List[str]:
    """Return the cell's lines with its magics again; one whose statement is not there any more is a `SourceError`."""
    shown = [_shown(line) for line in lines]
    headers = (number for number, line in enumerate(shown) if line.startswith("%%") and line != lines[number])
    header = next(headers, 0)
    if any(line.strip() for line in shown[:header]):
        if shown[header].startswith("%%timeit"):
            raise SourceError(f"imports of the cell of {shown[header].strip()} do not reach other cells")
        shown.insert(0, shown.pop(header))
    return shown


def parses(source: str) -> bool:
    """Return whether a text is Python."""
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deeply
        return False
    return True


def _hidden(lines: Sequence[str], mark: str) -> List[str]:
    found: List[str] = []
    continued = False
    for line in lines:
        new = line
        if continued:
            indent = line[: len(line) - len(line.lstrip())]
            new = f"{indent}{_HIDDEN}{line[len(indent) :]}"
        elif not line.lstrip().startswith("#"):
            new = _replaced(line, _HIDDEN if line.startswith("%%") else mark)
        continued = new != line and line.endswith("\\")
        found.append(new)
    return found


def _replaced(line: str, hidden: str) -> str:
    running = _RUNNING_MAGIC.match(line)
    if running is not None and parses(running.group("code")):
        target, magic, code = running.group("target", "magic", "code")
        return f"{target}{code}{_ASSIGNED if target.strip() else _IN_FRONT}{magic}"
    match = _ASSIGNED_MAGIC.match(line) or _MAGIC.match(line)
    return line if match is None else f"{match.group('indent')}{hidden}{match.group('code')}"


def _shown(line: str) -> str:
    for hidden in (_HIDDEN_STATEMENT, _HIDDEN):
        if line.lstrip().startswith(hidden):
            return line.replace(hidden, "", 1)
    for mark in (_IN_FRONT, _ASSIGNED):
        code, found, magic = line.partition(mark)
        if found and code.strip():
            target = re.match(_TARGET if mark is _ASSIGNED else r"\s*", code)
            place = target.end() if target is not None else 0
            return f"{code[:place]}{magic}{code[place:]}"
        if line.lstrip().startswith(mark.lstrip()):
            magic = line.lstrip()[len(mark.lstrip()) :].strip()
            raise SourceError(f"the statement behind {magic} becomes a part of another; take the magic away")
    return line
