"""The tables of tested versions in README and docs are those of the constraints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List

import pytest

ROOT = Path(__file__).parents[1]
COLUMNS = {1: "constraints-oldest.txt", 2: "constraints.txt"}
NAMES = {"PyTorch": "torch"}


def rows(page: str) -> Dict[str, List[str]]:
    """Return the cells of a page's table of versions, by the first."""
    lines = [line.strip("|").split("|") for line in (ROOT / page).read_text(encoding="utf-8").splitlines()]
    cells = [[cell.strip() for cell in line] for line in lines]
    start = next(number for number, line in enumerate(cells) if len(line) == 4 and "make newest" in line[3])
    table = cells[start + 2 :]
    return {line[0]: line for line in table[: next(at for at, line in enumerate(table) if len(line) != 4)]}


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_the_table_has_the_versions_that_the_tests_run_with(page: str) -> None:
    """The newest are not pinned anywhere: at least as new as the pinned ones."""
    table = rows(page)
    assert table.keys() >= {"Python", "PyTorch", "pytorch-ignite", "accelerate", "transformers"}
    for name, line in table.items():
        for column, file in COLUMNS.items():
            if name != "Python":
                pinned = re.search(rf"^{NAMES.get(name, name)}==([^;\s]+)", (ROOT / file).read_text(), re.MULTILINE)
                assert pinned is not None and line[column] == pinned[1], (name, file)
        if name != "Python":
            older, newer = [tuple(map(int, line[column].split("."))) for column in (2, 3)]
            assert newer >= older
