"""Comments are found where the parser has them, and not in strings."""

from __future__ import annotations

import pytest

from ignite_ipu.migration.program import Program
from ignite_ipu.migration.source.file import Source


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x = '# ignite-ipu: ignore'  # ignite-ipu: ignore\n# ignite-ipu: ignore[a, b]\n", [1, 2]),
        ("x = [  # no\n    1,  # ignite-ipu: ignore\n]\n", [2]),
        ("x = 1\r# ignite-ipu: ignore\r\n# ignite-ipu: ignore\n", [2, 3]),
    ],
)
def test_lines(text, lines):
    assert sorted(Program(Source("code.py", text)).suppressions) == lines
