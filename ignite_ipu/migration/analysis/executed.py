"""Code in strings that a file gives to `exec`, as far as the text shows it."""

from __future__ import annotations

import ast
from typing import List, NamedTuple, Optional

from ignite_ipu.migration.analysis.names import argument, constant, dotted, last_of
from ignite_ipu.migration.analysis.parsed_file import ParsedFile


class Executed(NamedTuple):
    """Code in a string, with the number of the line that executes it."""

    line: int
    text: str


def executed(file: ParsedFile) -> List[Executed]:
    """Return the code that a file executes from strings in it, in the order of the text."""
    found = ((call.lineno, _text(file, argument(call, "", 0))) for call, _ in file.calls("exec"))
    return [Executed(line, text) for line, text in found if text is not None and _is_code(text)]


def _text(file: ParsedFile, node: Optional[ast.expr]) -> Optional[str]:
    """Return the text of a literal, of a name that stands for one, and of `compile(text, ...)` and `dedent(text)`."""
    if isinstance(node, ast.Call) and last_of(node.func) in ("compile", "dedent"):
        return _text(file, argument(node, "source", 0))
    value = constant(file.single_value(dotted(node)) or node)
    return value if isinstance(value, str) else None


def _is_code(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
