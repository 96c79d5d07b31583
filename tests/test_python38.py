"""The package's source runs on Python 3.8, whichever Python the tests run on: the SDK lives there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

_ROOT = Path(__file__).parents[1]
_FILES = sorted(_ROOT.glob("ignite_ipu/**/*.py")) + sorted(_ROOT.glob("examples/**/*.py"))


def _language(path: Path) -> List[str]:
    """Return what Python 3.8 would refuse: a syntax error, or else types that it evaluates."""
    source = path.read_text(encoding="utf-8")
    try:
        tree = ast.parse(source, feature_version=(3, 8))
    except SyntaxError as error:
        return [f"{path}:{error.lineno}: {error.msg}"]
    return [f"{path}:{node.lineno}: {ast.get_source_segment(source, node)}" for node in _evaluated_types(tree)]


def _standard_library(*paths: Path) -> List[str]:
    """Return vermin's complaints: it knows when each module, function and argument appeared."""
    command = [sys.executable, "-c", "import vermin; vermin.main()", "--target=3.8-", "--violations"]
    run = subprocess.run(
        [*command, "--no-tips", "--no-parse-comments", "--quiet", "--processes=1", *map(str, paths)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
    )
    return run.stdout.splitlines() if run.returncode else []


def _evaluated_types(tree: ast.Module) -> List[ast.expr]:
    """Return where `list[int]`, collections.abc's `Mapping[str, int]` or `int | None` stand outside annotations.

    Python 3.8 raises a TypeError there; vermin, which infers no types, does not look.
    """
    generic = {"dict", "frozenset", "list", "set", "tuple", "type"}
    found: List[ast.expr] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.ImportFrom) and node.module in ("collections", "collections.abc", "contextlib", "re"):
            generic.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in generic:
            found.append(node)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            names = {side.id for side in (node.left, node.right) if isinstance(side, ast.Name)}
            nothing = any(isinstance(side, ast.Constant) and side.value is None for side in (node.left, node.right))
            if nothing or names & {"bool", "bytes", "float", "int", "str", *generic}:
                found.append(node)
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        visit(child)

    visit(tree)
    return found


def _too_new(*paths: Path) -> List[str]:
    """Return the problems of files; vermin is asked about those that Python 3.8 can read."""
    return [problem for path in paths for problem in _language(path)] or _standard_library(*paths)


def test_source_runs_on_python_38():
    assert _too_new(*_FILES) == []


@pytest.mark.parametrize(
    "code",
    [
        "match 1:\n    case _:\n        pass",
        "with (open('a') as a, open('b') as b):\n    pass",
        "'ignite_ipu'.removeprefix('ignite_')",
        "import functools\nfunctools.cache(print)",
        "zip([1], [2], strict=True)",
        "from dataclasses import dataclass\n@dataclass(slots=True)\nclass Point:\n    x: int",
        "from typing import Annotated",
        "Names = list[str]",
        "from collections.abc import Mapping\nclass Table(Mapping[str, int]): ...",
        "isinstance(1, int | None)",
        "def first(x: int, y: object = dict[str, int]()) -> int: ...",
    ],
)
def test_newer_python_is_noticed(code, tmp_path):
    """The check above is worth something only if it sees habitual syntax."""
    path = tmp_path / "newer.py"
    path.write_text("from __future__ import annotations\n" + code)
    assert _too_new(path)


def test_annotations_may_be_newer(tmp_path):
    """They are strings under `from __future__ import annotations`, and nothing evaluates them."""
    path = tmp_path / "annotated.py"
    path.write_text("from __future__ import annotations\n\ndef first(x: list[int] | None) -> int | None: ...\n")
    assert _too_new(path) == []
