"""The registry: every rule has its name in four places, an example that breaks it and one that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ignite_ipu.migration.checker import check_source
from ignite_ipu.migration.rules import all_rules
from ignite_ipu.migration.source.file import Source
from tests.migration.pages import rule_page

ROOT = Path(__file__).parents[2]
RULES = list(all_rules().values())


def test_registry_is_in_order_and_named_by_module():
    modules = sorted(path.stem for path in (ROOT / "ignite_ipu/migration/rules").glob("[!_]*.py"))
    assert [rule.name.replace("-", "_") for rule in RULES] == modules


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.traced], ids=lambda rule: rule.name)
def test_examples_of_what_only_a_trace_shows(rule, traced):
    assert rule.name in {name for _, name in traced(rule.bad)}
    assert rule.name not in {name for _, name in traced(rule.good)}


@pytest.mark.parametrize("rule", [rule for rule in RULES if not rule.traced], ids=lambda rule: rule.name)
def test_examples_break_and_keep_the_rule(rule):
    bad, _ = check_source(Source("bad.py", rule.bad))
    good, _ = check_source(Source("good.py", rule.good))
    assert rule.name in {finding.rule for finding in bad}
    assert rule.name not in {finding.rule for finding in good}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_has_a_test_and_its_page(rule):
    """`python -m tests.migration.pages docs/migration` writes the pages."""
    name = rule.name.replace("-", "_")
    assert (ROOT / f"tests/migration/rules/test_{name}.py").is_file()
    page = ROOT / f"docs/migration/rules/{rule.name}.md"
    assert page.read_text(encoding="utf-8") == rule_page(rule)


def test_no_page_is_left_over():
    pages = {path.stem for path in (ROOT / "docs/migration/rules").glob("*.md")}
    assert pages == {rule.name for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_texts_are_sentences(rule):
    for text in (rule.summary, rule.rationale, rule.remedy):
        assert text[-1] in ".)"
        assert text == text.strip()
