"""A Jupyter notebook seen as one Python text, so that a model in one cell and its training in another meet.

The code cells are joined with a marker statement in front of each. A rewrite keeps statements, so the markers tell
afterwards which cell a line belongs to. IPython's own syntax (`%magic`, `!command`, `name?`) is no Python; it is hidden
for the time being.
"""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Tuple

from ignite_ipu.errors import SourceError
from ignite_ipu.migration.source.magics import hide_magics, show_magics

_MARKER = '"ignite-ipu: notebook cell {}"'
_MARKER_LINE = re.compile(r'^"ignite-ipu: notebook cell (\d+)"$')


@dataclass
class Notebook:
    """The JSON document and the Python text of its code cells, each after its marker line.

    `cells` has for each of them its index among all cells, its number as users count code cells (from 1), and the line
    of `text` at which its marker stands.
    """

    content: Dict[str, Any]
    text: str
    cells: List[Tuple[int, int, int]] = field(default_factory=list)
    indent: int = 1
    trailing_newline: bool = True
    ascii_only: bool = False

    @classmethod
    def parse(cls, data: bytes) -> Notebook:
        """Read a notebook of format 4; anything else is a `SourceError`."""
        try:
            raw = data[len(codecs.BOM_UTF8) :] if data.startswith(codecs.BOM_UTF8) else data
            decoded = raw.decode("utf-8")
            content = json.loads(decoded)
        except (UnicodeDecodeError, ValueError, RecursionError) as error:
            raise SourceError(f"is not a notebook: {error}") from None
        if not isinstance(content, dict) or not isinstance(content.get("cells"), list):
            raise SourceError('is not a notebook of format 4: it has no list "cells"')
        language = _language(content)
        if language not in ("", "python"):
            raise SourceError(f"is a notebook in {language}, not in Python")
        lines: List[str] = []
        cells: List[Tuple[int, int, int]] = []
        number = 0
        for index, cell in enumerate(content["cells"]):
            if not isinstance(cell, dict) or cell.get("cell_type") != "code":
                continue
            number += 1
            python = hide_magics(_cell_text(cell))
            if python is None:
                continue
            cells.append((index, number, len(lines) + 1))
            lines.append(_MARKER.format(index))
            lines.extend(python)
        indent = re.match(r"\{\r?\n?( *)", decoded)
        return cls(
            content,
            "\n".join(lines) + "\n" if lines else "",
            cells,
            len(indent.group(1)) if indent else 1,
            decoded.endswith("\n"),
            "\\u" in decoded and decoded.isascii(),
        )

    def locate(self, line: int) -> Tuple[int, int]:
        """Return the number of the code cell that a line of `text` belongs to, and the line within it."""
        number, start = 1, 1
        for _, cell_number, marker in self.cells:
            if marker <= line:
                number, start = cell_number, marker
        return number, max(1, line - start)

    def line_of(self, cell: int, line: int) -> int:
        """Return the line of `text` at which a line of a code cell stands."""
        return next(marker + line for _, number, marker in self.cells if number == cell)

    def replace(self, text: str) -> str:
        """Return the file's new text with the code cells taken from `text`; everything else, outputs too, is kept.

        Raises a `SourceError` if its markers are not the notebook's, in order, or a magic has lost its command.
        """
        parts: List[Tuple[int, List[str]]] = []
        for line in text.rstrip("\n").split("\n") if text.strip() else []:
            marker = _MARKER_LINE.match(line)
            if marker:
                parts.append((int(marker.group(1)), []))
            elif parts:
                parts[-1][1].append(line)
            elif line.strip():
                raise SourceError("a line stands before the first cell's marker")
        if [index for index, _ in parts] != [index for index, _, _ in self.cells]:
            raise SourceError("the cells cannot be told apart after the rewrite")
        content = dict(self.content, cells=[dict(cell) for cell in self.content["cells"]])
        for position, (index, lines) in enumerate(parts):
            cell = content["cells"][index]
            old = _cell_text(cell)
            try:
                new = "\n".join(show_magics(lines))
            except SourceError as error:
                raise SourceError(f"in cell {self.cells[position][1]}, {error}") from None
            # The last cell's own trailing blank lines were cut with the text's.
            if position == len(parts) - 1:
                new = new.rstrip("\n") + old[len(old.rstrip("\n")) :]
            if new != old:
                cell["source"] = new.splitlines(keepends=True) if isinstance(cell["source"], list) else new
        dumped = json.dumps(content, indent=self.indent or None, ensure_ascii=self.ascii_only)
        return dumped + "\n" if self.trailing_newline else dumped


def _language(content: Dict[str, Any]) -> str:
    metadata = content.get("metadata")
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        part = metadata.get(key) if isinstance(metadata, dict) else None
        if isinstance(part, dict) and isinstance(part.get(name), str):
            return str(part[name]).lower()
    return ""


def _cell_text(cell: Dict[str, Any]) -> str:
    source = cell.get("source", "")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        return "".join(source)
    if isinstance(source, str):
        return source
    raise SourceError("has a code cell whose source is neither text nor a list of lines")
