"""The compatibility table: Ignite's features, their state on an IPU, and the script that proves each row."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

SAME = "same"
DIFFERS = "differs"
REFUSED = "refused"
HOST = "on the host"

PAGE = Path(__file__).parents[2] / "docs" / "ignite-compatibility.md"
GROUPS = ("engines", "handlers", "schedules", "loggers", "metrics", "distributed")

_TEXT = {
    SAME: "works, with the same values",
    DIFFERS: "works, with a difference",
    REFUSED: "refused, with the reason",
    HOST: "runs on the host, as in Ignite",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """The entry of some of Ignite's names.

    Attributes:
        group: The part of the table.
        names: Public names of Ignite that the row speaks for.
        support: How they do on an IPU engine.
        note: A note for users.
        script: Returns a record of what happened on one side; both sides' records must be the same.
        tolerance: How far numbers of the two records may be apart.
    """

    group: str
    names: Tuple[str, ...]
    support: str
    note: str
    script: Callable[[Any], Any]
    tolerance: float = 1e-4


ROWS: List[Row] = []


def row(*names: str, support: str = SAME, note: str = "", tolerance: float = 1e-4) -> Callable[[Any], Any]:
    """Put a script into the table, for the group its module is named for."""

    def add(script: Callable[[Any], Any]) -> Callable[[Any], Any]:
        ROWS.append(Row(script.__module__.rsplit(".", 1)[-1], names, support, note, script, tolerance))
        return script

    return add


def load() -> List[Row]:
    """Return the whole table."""
    for group in GROUPS:
        importlib.import_module(f"tests.ignite.rows.{group}")
    return ROWS


def page() -> str:
    """Return the documentation page that shows the table."""
    lines = [
        "# Ignite on an IPU",
        "",
        "This page lists the public names of pytorch-ignite and their support on the engines of `create_ipu_trainer`",
        "and `create_ipu_evaluator`. Each row is a script that the tests run on such an engine and on Ignite's own.",
        'Both must return the same values at the same iterations. For "works, with a difference" the note has the',
        "difference, and the script checks it. `python -m tests.ignite.table` writes the page from the tests.",
        "",
        "An iteration is one device call. With deviceIterations, gradientAccumulation and replicationFactor of 1 it is",
        "one batch, as in Ignite. [Counting](schedules.md) describes larger calls.",
    ]
    by_group: Dict[str, List[Row]] = {group: [] for group in GROUPS}
    for entry in load():
        by_group[entry.group].append(entry)
    for group, entries in by_group.items():
        lines += ["", f"## {group.capitalize()}", "", "| Ignite | On an IPU | Note |", "|---|---|---|"]
        for entry in entries:
            names = ", ".join(f"`{name}`" for name in entry.names)
            lines.append(f"| {names} | {_TEXT[entry.support]} | {entry.note} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    # Run as a module this file exists twice; the rows are in the one that they import.
    PAGE.write_text(importlib.import_module("tests.ignite.table").page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
