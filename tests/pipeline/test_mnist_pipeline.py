"""The pipelining tutorial's example: every flag runs, and no strategy changes the result."""

from __future__ import annotations

import importlib.util
import json
import logging
import re
from pathlib import Path

import pytest
import torch

from tests.supervised import assert_same_weights

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist_pipeline.py"
STRATEGIES = ["pipelined", "sharded", "serial-phased", "parallel-phased"]
ARGUMENTS = ["--epochs", "1", "--learning-rate", "0.002"]


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("mnist_pipeline", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def absent():
        raise ImportError("tests use the digits")

    module.mnist = absent
    return module


def run(example, *arguments, strategy=...):
    args = example.parse([*ARGUMENTS, *arguments])
    if strategy is None:
        args.strategy = None
    torch.manual_seed(0)
    model = example.Network()
    return model, example.run(args, model)


@pytest.fixture(scope="module")
def unpartitioned(example):
    return run(example, strategy=None)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_gives_the_unpartitioned_runs_weights(example, unpartitioned, strategy, capsys):
    """Training and inference pipelines learn and predict as one IPU does."""
    reference, accuracy = unpartitioned
    model, found = run(example, "--strategy", strategy)
    assert found == accuracy > 0.7
    assert_same_weights(model, reference)
    text = capsys.readouterr().out
    assert "x 10 (gradientAccumulation)" in text and f"Placement({strategy.replace('-', ' ')}: layer1 -> IPU 0" in text


def test_offloading_and_profiling_change_no_weight(example, unpartitioned, tmp_path, capsys):
    """The optimiser's state off chip; the estimated schedule is a trace with an event for each pass on each IPU."""
    model, _ = run(example, "--offload-optimiser", "--profile", "--profile-dir", str(tmp_path / "reports"))
    assert_same_weights(model, unpartitioned[0])
    with open(tmp_path / "reports" / "schedule.json", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    passes = [event for event in events if event["ph"] == "X" and event["name"][0] in "FB"]
    assert len(passes) == 2 * 4 * 10


@pytest.fixture
def few(example, monkeypatch):
    """Enough digits for a call of each program."""
    sets = [torch.utils.data.Subset(each, range(240)) for each in example.digits()]
    monkeypatch.setattr(example, "digits", lambda: sets)


@pytest.mark.usefixtures("few")
def test_batch_sizes_and_device_iterations(example, capsys):
    run(example, "--batch-size", "8", "--device-iterations", "3", "--test-batch-size", "5")
    text = capsys.readouterr().out
    assert "8 (micro-batch) x 10 (gradientAccumulation) x 1 (replicationFactor) = 80 samples per weight update" in text
    assert "x 3 (deviceIterations) = 240 samples per device call" in text


@pytest.mark.usefixtures("few")
def test_debug_prints_poptorchs_log(example, capfd):
    """It names the operators and the IPU of each, and is silent without the flag."""
    logger = logging.getLogger("poptorch::python")
    before = logger.level
    try:
        run(example)
        assert "[debug]" not in capfd.readouterr().err
        run(example, "--debug")
    finally:
        logger.setLevel(before)
    log = capfd.readouterr().err
    assert "[poptorch::python] [debug] The graph handed to the back end" in log
    operators = re.findall(r"^\[ipu (\d) stage \1 .*?\] (\w+?)(?:_\d)?:", log, re.MULTILINE)
    assert {("0", "conv2d"), ("1", "conv2d"), ("2", "linear"), ("3", "linear")} <= set(operators)


def test_epochs_and_defaults_of_the_tutorial(example):
    args = example.parse([])
    assert (args.epochs, args.learning_rate, args.strategy, args.test_batch_size) == (3, 0.001, "pipelined", 8)
    assert args.profile_dir == "profile" and not (args.profile or args.debug or args.offload_optimiser)
