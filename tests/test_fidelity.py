"""The page on the tests of PopTorch's behaviour names existing tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "fidelity.md").read_text()
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)


def test_every_row_names_a_test():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.endswith("Test |")]
    assert rows
    assert all(re.search(r"`[\w/]+\.py::\w+`", row) for row in rows)


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_there_are_such_tests(file):
    tree = ast.parse((TESTS / file).read_text())
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert {name for named, name in NAMED if named == file} <= functions
