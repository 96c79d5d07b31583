"""Loops behind each door: an update that only the host can make is made there, and the numbers are the native ones."""

from __future__ import annotations

import pytest

from ignite_ipu.migration.analysis.plain_updates import makes_plain_updates
from ignite_ipu.migration.checker import judge_source
from ignite_ipu.migration.program import Program
from ignite_ipu.migration.source.file import Source
from ignite_ipu.migration.verdict import Verdict
from tests.doors.loops import LOOPS, differences, text_of, verdicts

# `python -m tests.doors loops` takes all.
SAMPLE = ("plain", "a gradient's norm is read", "steps by the loss", "two optimizers of all weights", "sharpness-aware")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SAMPLE)
def test_a_loop_trains_the_same_by_import_and_migrated(name, tmp_path):
    assert differences(name, tmp_path) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LOOPS)
def test_the_verdict_on_a_loop_is_what_a_run_does(name, tmp_path):
    judged, ran = verdicts(name, tmp_path)
    assert judged is ran


def test_the_text_of_plain_updates_shows_that_the_device_can_make_them():
    plain = []
    for name in LOOPS:
        source = Source("program.py", text_of(name))
        program = Program(source)
        if judge_source(source)[2].verdict is Verdict.TRAINS and makes_plain_updates(program.training):
            plain.append(name)
    assert plain == [
        "plain",
        "cleared after the step",
        "clipped by norm",
        "an average of weights",
        "an older output is used",
        "weights are clamped after the step",
        "functions of weights, without a call of their model",
        "parameters of no module",
        "a tensor that is no parameter",
        "a tensor beside the model's weights",
        "an input that is trained, of a frozen model",
    ]
