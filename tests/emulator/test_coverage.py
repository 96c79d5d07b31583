"""The coverage page tells of every name of the API table what happens to it, and that is what happens."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import pytest
import torch

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.ops.registered import OPERATORS
from tests.emulator import coverage
from tests.emulator.calls import Calls
from tests.emulator.coverage import Status

_ROOT = Path(__file__).parents[2]
_TABLE = json.loads((Path(__file__).parent / "data" / "api.json").read_text(encoding="utf-8"))
_PAGE = _ROOT / "docs" / "emulator-coverage.md"


def test_what_is_accepted_or_refused_says_why():
    assert all(entry.note for entry in coverage.entries() if entry.status is not Status.EMULATED)


def traced(function: Callable[[torch.Tensor], Any], options: Optional[poptorch.Options] = None) -> None:
    poptorch.inferenceModel(Calls(function), options).compile(torch.ones(2, 2))


_LOOP = poptorch.OverlapMode.OverlapAccumulationLoop
_MODE = poptorch.MatMulSerializationMode.ReducingDim

# For each name that is accepted after a check, as its note says, something that the check refuses.
_WRONG: Dict[str, Callable[[], Any]] = {
    "poptorch.options._PrecisionOptions.runningStatisticsAlwaysFloat": lambda: (
        poptorch.Options().Precision.runningStatisticsAlwaysFloat("yes")
    ),
    "poptorch.options._PrecisionOptions.setPartialsType": lambda: poptorch.Options().Precision.setPartialsType(
        torch.int32
    ),
    "poptorch.Options.syncPattern": lambda: poptorch.Options().syncPattern("Full"),
    "poptorch.MatMulSerializationMode": lambda: traced(lambda x: poptorch.serializedMatMul(x, x, _MODE, 3)),
    "poptorch.SerialPhasedExecution.setTensorsLiveness": lambda: poptorch.SerialPhasedExecution("a").setTensorsLiveness(
        "AlwaysLive"
    ),
    "poptorch.ParallelPhasedExecution.sendTensorsOffChipAfterFwd": lambda: poptorch.ParallelPhasedExecution(
        "a"
    ).sendTensorsOffChipAfterFwd(1),
    "poptorch.SerialPhasedExecution.useSeparateBackwardPhase": lambda: poptorch.SerialPhasedExecution(
        "a"
    ).useSeparateBackwardPhase(1),
    "poptorch.ParallelPhasedExecution.useSeparateBackwardPhase": lambda: poptorch.ParallelPhasedExecution(
        "a"
    ).useSeparateBackwardPhase(1),
    "poptorch.options._IPhasedExecution.useSeparateBackwardPhase": lambda: (
        poptorch.options._IPhasedExecution.useSeparateBackwardPhase(poptorch.SerialPhasedExecution("a"), 1)
    ),
    "poptorch.set_overlap_for_input": lambda: traced(lambda x: poptorch.set_overlap_for_input(x, _LOOP) + 1),
    "poptorch.set_overlap_for_output": lambda: traced(lambda x: poptorch.set_overlap_for_output(x + 1, _LOOP)),
    "poptorch.set_available_memory": lambda: traced(lambda x: poptorch.set_available_memory(x + 1, 2.0)),
    "poptorch.MultiConv.availableMemoryProportions": lambda: poptorch.MultiConv().availableMemoryProportions("all"),
    "poptorch.MultiConv.partialsTypes": lambda: poptorch.MultiConv().partialsTypes(torch.int32),
    "poptorch.MultiConv.enableConvDithering": lambda: poptorch.MultiConv().enableConvDithering(1),
    "poptorch.MultiConv.planType": lambda: poptorch.MultiConv().planType("serial"),
    "poptorch.MultiConv.perConvReservedTiles": lambda: poptorch.MultiConv().perConvReservedTiles(1.0),
    "poptorch.MultiConv.cycleBackOff": lambda: poptorch.MultiConv().cycleBackOff(1),
    "poptorch.TensorLocationSettings": lambda: poptorch.TensorLocationSettings().useOnChipStorage(1),
    "poptorch.options._TensorLocationOptions": lambda: poptorch.Options().TensorLocations.numIOTiles(31),
    "poptorch.Options.TensorLocations": lambda: poptorch.Options().TensorLocations.setWeightLocation("on chip"),
    "poptorch.Options.setAvailableMemoryProportion": lambda: poptorch.Options().setAvailableMemoryProportion(
        {"IPUzero": 0.5}
    ),
    "poptorch.Options.available_memory_proportion": lambda: traced(
        torch.relu, poptorch.Options().setAvailableMemoryProportion({"IPU0": 2.0})
    ),
    "poptorch.options._PopartOptions.setPatterns": lambda: poptorch.Options()._Popart.setPatterns({"PreUniRepl": 1}),
}


def test_every_check_that_a_note_speaks_of_is_listed_here():
    assert set(_WRONG) == {name for name, note in coverage._ACCEPTED.items() if re.search("checked|checks|valid", note)}


@pytest.mark.parametrize("name", _WRONG)
def test_what_is_accepted_after_a_check_is_checked(name):
    with pytest.raises((AssertionError, ValueError, poptorch.Error)):
        _WRONG[name]()


def test_every_note_is_about_a_name_that_exists():
    known = {entry.name for entry in coverage.entries()}
    for table in (coverage._ACCEPTED, coverage._REFUSED, coverage._REMARKS):
        assert not set(table) - known


def test_the_page_is_up_to_date():
    """The command that it names prints it."""
    assert coverage.page() == _PAGE.read_text(encoding="utf-8"), (
        "run: python -m tests.emulator.coverage > docs/emulator-coverage.md"
    )


def test_the_page_lists_the_table_and_counts_it():
    """Every name of PopTorch's API has one row, and the three counts are of all of them."""
    text = _PAGE.read_text(encoding="utf-8")
    names = {entry["name"] for entry in _TABLE["entries"]}
    rows = re.findall(r"^\| `(.+?)` \| (\w+) \|", text, re.M)
    assert sorted(name for name, _ in rows) == sorted(names)
    assert f"PopTorch 3.3 has {len(names)} public names" in text
    counts = {status: int(count) for count, status in re.findall(r"(\d+) are \*(\w+)\*", text)}
    assert sum(counts.values()) == len(names)
    assert [name for name, status in rows if status == "refused"] == [
        "poptorch.MeanReductionStrategy.PostAndLoss",
        "poptorch.Options.logCycleCount",
        "poptorch.PoplarExecutor.cycleCount",
    ]
    assert counts["refused"] == 3


@pytest.mark.parametrize("module", coverage.SDK)
def test_the_page_lists_what_the_sdks_other_modules_have(module):
    """All of it, and nothing that is not there."""
    listed = set(coverage.SDK[module].split())
    if module == "torch.ops.poptorch":
        found, exported = torch.ops.poptorch, set(OPERATORS)
    else:
        with poptorch.install():
            found = importlib.import_module(module)
            exported = set(found.__all__)
    assert listed == exported and all(hasattr(found, name) for name in listed)


def test_what_is_refused_raises():
    executor = poptorch.inferenceModel(torch.nn.Linear(1, 1), poptorch.Options().logCycleCount(True))
    with pytest.raises(poptorch.Error, match="only supported on actual IPU hardware"):
        executor(torch.ones(1, 1))
    with pytest.raises(poptorch.Error, match="run the model at least once"):
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


def test_the_command_for_tests_of_poptorch_runs_them(tmp_path, processes):
    """The page's command, with a test that is written as PopTorch's are."""
    command = re.compile(r"install='(.+)'\npython -c \"\$\{install\}(.+)\" options_test.py")
    install, rest = command.search(coverage.page()).groups()
    (tmp_path / "options_test.py").write_text(
        "import poptorch\n\n\ndef test_version():\n    assert poptorch.__version__ == '3.3.0+emulator'\n"
    )
    done = processes.run(["-c", install + rest, "-q", "-p", "no:cacheprovider", "options_test.py"], cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1][:8]) == (0, "1 passed"), done.stdout + done.stderr
