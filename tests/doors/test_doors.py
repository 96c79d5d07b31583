"""`check`, `run`, `auto` and `migrate` make the same of a script; `python -m tests.doors` takes all of them."""

from __future__ import annotations

import pytest

from tests.doors import codebases
from tests.doors.comparing import CORPUS, differences

# One of each verdict.
SAMPLE = ["accumulation_ignite", "lbfgs", "hogwild"]


@pytest.mark.parametrize("name", SAMPLE)
def test_verdicts_and_numbers_are_the_same_behind_all_doors(name, scripts, tmp_path):
    pytest.importorskip("sklearn")
    assert differences(CORPUS / f"{name}.py", scripts, tmp_path) == []


@pytest.mark.parametrize("program", codebases.SAMPLE, ids=str)
def test_code_bases_of_several_files_are_the_same_behind_all_doors(program, scripts, tmp_path):
    assert codebases.differences(program, scripts, tmp_path) == []
