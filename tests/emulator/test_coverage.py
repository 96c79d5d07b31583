"""The coverage registry knows every name of the API table, and its page is the one in the documentation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator import coverage
from ignite_ipu.emulator.coverage import Status

_ROOT = Path(__file__).parents[2]
_TABLE = json.loads((Path(__file__).parent / "data" / "api.json").read_text(encoding="utf-8"))
_PAGE = _ROOT / "docs" / "emulator-coverage.md"


def test_every_name_of_the_table_has_a_status_and_no_other():
    listed = [entry.name for entry in coverage.entries()]
    assert sorted(listed) == sorted({entry["name"] for entry in _TABLE["entries"]})


def test_what_is_accepted_or_refused_says_why():
    for entry in coverage.entries():
        assert entry.status is Status.EMULATED or len(entry.note) > 20, entry


def test_every_note_is_about_a_name_that_exists():
    known = {entry.name for entry in coverage.entries()}
    for table in (coverage._ACCEPTED, coverage._REFUSED, coverage._REMARKS):
        assert not set(table) - known


def test_a_made_up_name_is_unknown():
    for name in ("poptorch.nothing", "poptorch.Options.nothing", "numpy.array"):
        with pytest.raises(KeyError):
            coverage.entry(name)


def test_the_page_is_up_to_date():
    """Written by the command that the page names."""
    command = [sys.executable, "-m", "ignite_ipu.emulator.coverage"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=_ROOT).stdout
    assert printed == coverage.page() == _PAGE.read_text(encoding="utf-8"), (
        "run: python -m ignite_ipu.emulator.coverage > docs/emulator-coverage.md"
    )


def test_the_page_counts_what_it_lists():
    text = _PAGE.read_text(encoding="utf-8")
    for status in Status:
        (count,) = re.findall(rf"(\d+) are \*{status.value}\*", text)
        assert int(count) == len(re.findall(rf"^\|.*\| {status.value} \|", text, re.M))


def test_what_is_refused_raises():
    with pytest.raises(AssertionError, match="No IPU hardware available"):
        poptorch.ipuHardwareVersion()
    executor = poptorch.inferenceModel(torch.nn.Linear(1, 1), poptorch.Options().logCycleCount(True))
    executor(torch.ones(1, 1))
    with pytest.raises(poptorch.Error, match="only supported on actual IPU hardware"):
        executor.cycleCount()
    options = poptorch.Options()
    options.Training.setMeanAccumulationAndReplicationReductionStrategy(poptorch.MeanReductionStrategy.PostAndLoss)
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), poptorch_loss())
    with pytest.raises(poptorch.Error, match="MeanReductionStrategy out of range"):
        poptorch.trainingModel(model, options)(torch.ones(1, 1))


def poptorch_loss() -> torch.nn.Module:
    class Loss(torch.nn.Module):
        def forward(self, x):
            return poptorch.identity_loss(x, "sum")

    return Loss()
