"""Every rewrite: its example, its second run, its test, and its place in the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ignite_ipu.migration.docstrings import one_side
from ignite_ipu.migration.rewrites import ORDER, all_rewrites
from tests.migration.pages import rewrites_page

ROOT = Path(__file__).parents[2]
REWRITES = list(all_rewrites().values())


def test_registry_holds_every_module_under_its_name():
    modules = sorted(path.stem for path in (ROOT / "ignite_ipu/migration/rewrites").glob("[!_]*.py"))
    assert sorted(ORDER) == modules
    assert [rewrite.name.replace("-", "_") for rewrite in REWRITES] == list(ORDER)


@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda rewrite: rewrite.name)
def test_example(rewrite, rewritten):
    assert rewritten(rewrite.name, one_side(rewrite.example, "+")) == one_side(rewrite.example, "-")


@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda rewrite: rewrite.name)
def test_second_run_changes_nothing(rewrite, rewritten):
    after = one_side(rewrite.example, "-")
    assert rewritten(rewrite.name, after) == after


@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda rewrite: rewrite.name)
def test_every_rewrite_has_a_test(rewrite):
    assert (ROOT / f"tests/migration/rewrites/test_{rewrite.name.replace('-', '_')}.py").is_file()


def test_docs_show_every_rewrite():
    """`python -m tests.migration.pages docs/migration` writes the page."""
    assert (ROOT / "docs/migration/rewrites.md").read_text(encoding="utf-8") == rewrites_page()
