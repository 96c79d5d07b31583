"""`check`, `run`, `auto` and `migrate` make the same of a script; `python -m tests.doors` takes all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ignite_ipu.migration.checker import judge_source
from ignite_ipu.migration.source.file import Source
from ignite_ipu.migration.verdict import Verdict
from tests.doors import codebases
from tests.doors.comparing import CORPUS, differences
from tests.test_docs import python_blocks

# One of each verdict.
SAMPLE = ["accumulation_ignite", "lbfgs", "hogwild"]


@pytest.mark.parametrize("name", SAMPLE)
def test_verdicts_and_numbers_are_the_same_behind_all_doors(name, scripts, tmp_path):
    pytest.importorskip("sklearn")
    assert differences(CORPUS / f"{name}.py", scripts, tmp_path) == []


@pytest.mark.parametrize("program", codebases.SAMPLE, ids=str)
def test_code_bases_of_several_files_are_the_same_behind_all_doors(program, scripts, tmp_path):
    assert codebases.differences(program, scripts, tmp_path) == []


def test_the_programs_of_the_documentation_are_not_refused():
    """Their blocks run, one after the other, in the tests of the documentation."""
    found = {}
    for page in [*(Path(__file__).parents[2] / "docs").glob("*.md"), Path(__file__).parents[2] / "README.md"]:
        text = "\n".join(block.code for block in python_blocks(page.read_text(encoding="utf-8")))
        found[page.name] = judge_source(Source(f"{page.name}.py", text))[2].verdict if text else Verdict.NOTHING
    assert [name for name, verdict in found.items() if verdict is Verdict.REFUSED] == []
    assert {found[name] for name in ("README.md", "quickstart.md", "schedules.md")} == {Verdict.TRAINS}
    assert {found[name] for name in ("loops.md", "optimizers.md")} == {Verdict.TRAINS_ON_HOST}
