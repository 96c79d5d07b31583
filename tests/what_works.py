"""The page of supported features: its rows, from `what_works.txt`. `python -m tests.what_works` writes it.

A row is `+` (works), `~` (in part) or `-` (does not), its subject, the way or reason, and the tests, divided by `|`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, List, NamedTuple

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "what-works.md"
_SIGNS = {"+": "yes", "~": "in part", "-": "no"}
_HEAD = """# Supported features

The table lists features of Ignite, accelerate, PopTorch, its tutorials, lightning-graphcore and Optimum. Each row has
its support and its test below `tests/`. A row with "no" has the reason, and the test of the error. A test checks the
names of this page. `python -m tests.what_works` writes it.

"""


class Row(NamedTuple):
    """One capability; `tests` are paths with names."""

    sign: str
    what: str
    how: str
    tests: List[str]


def rows() -> Iterator[Row]:
    """Yield all rows."""
    for line in _lines():
        if line[:1] in _SIGNS:
            what, how, tests = (cell.strip() for cell in line[2:].split("|"))
            yield Row(line[0], what, how, [test.strip().replace("::", "::test_") for test in tests.split(",")])


def page() -> str:
    """Return the page."""
    found = rows()
    lines = []
    for line in _lines():
        if line.startswith("## "):
            lines += ["", line, "", "| Feature | Works | How, or why not | Test |", "|---|---|---|---|"]
        elif line[:1] in _SIGNS:
            row = next(found)
            lines.append(f"| {row.what} | {_SIGNS[row.sign]} | {row.how} | {', '.join(f'`{t}`' for t in row.tests)} |")
        elif line:
            lines.append(line)
    return _HEAD + "\n".join(lines) + "\n"


def _lines() -> List[str]:
    return (HERE / "what_works.txt").read_text().splitlines()


if __name__ == "__main__":
    PAGE.write_text(page())
