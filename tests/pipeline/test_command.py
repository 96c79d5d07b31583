"""`ignite-ipu plan`, from the command line to the files."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

from ignite_ipu.cli.command import main
from ignite_ipu.pipeline import command

MODEL = """
import torch
from torch import nn

def make():
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))), torch.zeros(4, 64)

def trained():
    model, inputs = make()
    return model, inputs, torch.optim.SGD(model.parameters(), lr=0.1)

def wrong():
    return torch.zeros(1)

def failing():
    raise KeyError("a file")
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "planned_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    return lambda *arguments: main(["plan", *arguments])


def test_it_prints_tables_and_writes_files(run, tmp_path, capsys):
    options = ["--ipus", "4", "--ipus-per-replica", "4", "--picture", "a.png", "--trace", "a.json"]
    assert run("planned_model.py:make", *options, "--pod", "16", "--pod-picture", "b.png") == 0
    printed = capsys.readouterr().out
    assert "pipelined" in printed and "sharded" in printed and "estimates" in printed
    assert "Doubling the replicas pays" in printed
    assert json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    assert (tmp_path / "a.png").exists() and (tmp_path / "b.png").exists()


def test_modules_optimizers_and_inference(run, capsys):
    """A module path works like a file; the factory's optimizer is used, and inference has none."""
    assert run("planned_model:trained", "--ipus", "2") == 0
    trained = capsys.readouterr().out
    assert "training on" in trained and "off-chip" not in trained
    assert run("planned_model:make", "--ipus", "2", "--inference", "--machine", "bow", "--granularity", "leaves") == 0
    assert "inference on 2 x Bow" in capsys.readouterr().out


def test_it_prints_the_copies_of_updates_on_the_host(run, capsys):
    """Gradients of each micro-batch go to the host, and the weights come back once; an inference plan has none."""
    assert run("planned_model:make", "--ipus", "1", "--ipus-per-replica", "1", "--global-batch", "16") == 0
    weights = 8 * (64 * 64 + 64) * 4
    copied = f"copies {4 * weights / 1e3:.0f} kB of gradients to the host and {weights / 1e3:.0f} kB of weights back"
    assert f"with update='host' an update {copied}" in capsys.readouterr().out
    assert run("planned_model:make", "--ipus", "1", "--inference") == 0
    assert "update='host'" not in capsys.readouterr().out


def test_nothing_fits(run, capsys):
    """The exit status and the message report it, with numbers."""
    assert run("planned_model:make", "--ipus", "2", "--memory", "10kB", "--usable", "0.5") == 1
    error = capsys.readouterr().err
    assert "No plan fits" in error and "5 kB for tensors (50% of 10 kB)" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["planned_model"], "not of the form MODULE:FACTORY"),
        (["planned_model:missing"], "has no function 'missing'"),
        (["nowhere.py:make"], "no file 'nowhere.py'"),
        (["nowhere:make"], "no module 'nowhere'"),
        (["planned_model:wrong"], "returned Tensor; it must return"),
        (["planned_model:failing"], "planned_model:failing failed: KeyError: 'a file'"),
        (["planned_model:make", "--optimizer", "lion"], "No optimizer is named 'lion'"),
        (["planned_model:make", "--granularity", "odd"], "granularity is 'odd'"),
        (["planned_model:make", "--pod-picture", "b.png"], "needs --pod"),
    ],
)
def test_questions_without_an_answer(run, capsys, arguments, words):
    assert run(*arguments) == 2
    assert words in capsys.readouterr().err


def test_sizes():
    assert command._size("900MB") == 900 * 10**6
    assert command._size("897 MiB") == 897 * 2**20
    with pytest.raises(argparse.ArgumentTypeError, match="is no size"):
        command._size("much")


def test_a_saved_plan_is_shown_again(run, capsys):
    """The command prints the file that `--save` wrote, without the model."""
    assert run("planned_model.py:make", "--ipus", "2", "--save", "best.json") == 0
    printed = capsys.readouterr().out
    assert run("best.json", "--trace", "trace.json") == 0
    shown = capsys.readouterr().out
    assert shown.strip() and printed.endswith(shown)
    assert json.loads(Path("trace.json").read_text())
    assert run("missing.json") == 2
    assert "missing.json" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--picture", "--pod-picture"])
def test_a_picture_without_matplotlib_names_the_install_command(run, option, capsys, monkeypatch):
    """Before anything is measured."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    pod = ["--pod", "8"] if option == "--pod-picture" else []
    assert run("planned_model:failing", *pod, option, "x.svg") == 2
    shown = capsys.readouterr().err
    assert shown.endswith("Drawing needs matplotlib, which is not installed: pip install 'ignite-ipu[plot]'\n")


def test_a_picture_of_an_unknown_kind_is_refused_before_anything_is_measured(run, capsys):
    assert run("planned_model:failing", "--picture", "x.svgg") == 2
    assert "x.svgg: no picture has the ending .svgg. Did you mean 'svg'" in capsys.readouterr().err
