"""Public names are listed, found and explained."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest

import ignite_ipu.handlers

PACKAGES = (
    "ignite_ipu.handlers",
    "ignite_ipu.checkpoints",
    "ignite_ipu.pipeline",
    "ignite_ipu.handlers.recovery.decisions",
)


@pytest.mark.parametrize("name", PACKAGES)
def test_what_is_listed_is_there_and_explained(name):
    """Every public name can be imported; classes and functions are explained."""
    module = import_module(name)
    assert len(set(module.__all__)) == len(module.__all__)
    for public in module.__all__:
        value = getattr(module, public)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), public


def test_handlers_export_what_their_modules_make_public():
    """A handler that a module lists is one that users find in the package."""
    found = set()
    for info in pkgutil.iter_modules(ignite_ipu.handlers.__path__):
        found |= set(import_module(f"ignite_ipu.handlers.{info.name}").__all__)
    assert found == set(ignite_ipu.handlers.__all__)


def test_docstrings_begin_with_a_noun_or_a_verb():
    """All of them, so that a reader learns the kind of a thing before its purpose."""
    clause = re.compile(r"(What|Which|Whether|Where|When|How|Whose|Who|If|That)\b")
    found = []
    for file in sorted(Path(ignite_ipu.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and clause.match(
                ast.get_docstring(node) or ""
            ):
                found.append(f"{file}:{getattr(node, 'lineno', 1)}")
    assert found == []
