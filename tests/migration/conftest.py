"""Fixtures that put source text through the checker and the rewrites."""

from __future__ import annotations

import textwrap
from typing import Callable, List, Tuple

import pytest

pytest.importorskip("libcst")

from ignite_ipu.migration.checker import check_source
from ignite_ipu.migration.findings import Finding
from ignite_ipu.migration.program import Program
from ignite_ipu.migration.rewrites import all_rewrites
from ignite_ipu.migration.rewriting.editor import Editor
from ignite_ipu.migration.rules import all_rules
from ignite_ipu.migration.source.file import Source


@pytest.fixture
def findings() -> Callable[[str, str], List[Finding]]:
    """Return a function that gives a rule's findings in a text."""

    def find(rule: str, code: str) -> List[Finding]:
        found, _ = check_source(Source("code.py", textwrap.dedent(code).lstrip("\n")), [all_rules()[rule]])
        return list(found)

    return find


@pytest.fixture
def lines(findings) -> Callable[[str, str], List[int]]:
    """Give the lines at which a rule finds something in a text."""
    return lambda rule, code: [finding.line for finding in findings(rule, code)]


@pytest.fixture
def lines_in(lines) -> Callable[..., List[int]]:
    """Give the lines of a loop's body, from 1, at which a rule finds something; a text has `{body}` in its place."""

    def find(rule: str, text: str, *body: str) -> List[int]:
        before = text[: text.index("{body}")].lstrip("\n").count("\n")
        code = text.format(body="\n".join(f"            {each}" for each in body))
        return [line - before for line in lines(rule, code)]

    return find


@pytest.fixture
def traced(tmp_path) -> Callable[[str], List[Tuple[int, str]]]:
    """Return a function that gives the lines and rules of findings when the model of `make()` in a text is compiled."""

    def find(code: str) -> List[Tuple[int, str]]:
        from ignite_ipu.migration.trial.findings import with_traced
        from ignite_ipu.migration.trial.trial import try_out

        path = tmp_path / "code.py"
        path.write_text(textwrap.dedent(code).lstrip("\n"))
        target = f"{path}:make"
        findings, _ = with_traced([], try_out(target), all_rules())
        assert all(finding.path == str(path) for finding in findings)
        return [(finding.line, finding.rule) for finding in findings]

    return find


@pytest.fixture
def rewritten() -> Callable[[str, str], str]:
    """Return a function that applies one rewrite to a text."""

    def apply(rewrite: str, code: str) -> str:
        text = textwrap.dedent(code).lstrip("\n")
        editor = Editor(Program(Source("code.py", text)), rewrite)
        all_rewrites()[rewrite].apply(editor)
        return editor.finish()

    return apply
