"""`ignite-ipu config` writes the answers."""

from __future__ import annotations

import io
import json
import sys
import types

import pytest

from ignite_ipu import IPUConfig
from ignite_ipu.cli.command import main


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def answer(monkeypatch, *lines):
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_without_questions_the_defaults_are_written(capsys):
    """A file that is there is not lost."""
    assert main(["config", "--default"]) == 0
    assert IPUConfig.load("ipu_config.yaml") == IPUConfig()
    assert main(["config", "--default"]) == 2
    assert "ipu_config.yaml is there already" in capsys.readouterr().err
    assert main(["config", "--default", "--overwrite"]) == 0


def test_answers_become_settings(monkeypatch, capsys):
    """Only questions that matter are asked; an empty answer is the default."""
    answer(monkeypatch, "4", "8", "auto", "16", "2", "fp16", "128", "1.0", "y", "", "3")
    assert main(["config", "--output", "ipu.json"]) == 0
    wanted = IPUConfig(
        gradient_accumulation_steps=4,
        device_iterations=8,
        pipeline="auto",
        ipus=16,
        replication_factor=2,
        mixed_precision="fp16",
        loss_scaling=128,
        max_grad_norm=1.0,
        offload=["optimizer"],
        seed=3,
    )
    assert IPUConfig.load("ipu.json") == wanted
    assert repr(wanted) in capsys.readouterr().out


def test_layers_are_names_or_numbers(monkeypatch):
    answer(monkeypatch, "", "", "embed, 3", "sharded", *[""] * 6)
    assert main(["config"]) == 0
    assert IPUConfig.load("ipu_config.yaml") == IPUConfig(pipeline=["embed", 3], execution="sharded")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["4"], "there is no answer to 'Weight updates per device call?'"),
        (["four"], "'four' is no answer to 'Micro-batches per weight update and replica?'"),
        (["", "", "", "", "bf16"], "mixed_precision is 'bf16'; it must be one of: 'no', 'fp16'"),
    ],
)
def test_a_wrong_answer_of_a_pipe_ends_it(monkeypatch, capsys, lines, message):
    """Nothing is written then."""
    answer(monkeypatch, *lines)
    assert main(["config"]) == 2
    assert message in capsys.readouterr().err
    with pytest.raises(FileNotFoundError):
        IPUConfig.load("ipu_config.yaml")


def test_a_wrong_answer_at_a_terminal_is_asked_for_again(monkeypatch, capsys):
    answer(monkeypatch, "four", "4", *[""] * 9)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert main(["config"]) == 0
    assert IPUConfig.load("ipu_config.yaml") == IPUConfig(gradient_accumulation_steps=4)
    assert capsys.readouterr().out.count("Micro-batches per weight update") == 3


@pytest.mark.parametrize(
    ("number", "wrong", "message"),
    [
        (0, "-3", "gradient_accumulation_steps must be at least 1, got -3"),
        (0, "many", "'many' is no answer"),
        (1, "1.5", "device_iterations must be an integer, got 1.5"),
        (3, "5", "IPUs are handed out in powers of two, and 5 replicas take a multiple of 5. Use 4 or 8"),
        (3, "128", "128 replicas need at least 128 IPUs, and there are 64"),
        (5, "-1", "max_grad_norm must be positive, got -1"),
        (5, "nan", "max_grad_norm must be a number"),
        (8, "some", "seed must be an integer, got 'some'"),
    ],
)
def test_an_answer_that_cannot_be_is_refused_at_its_question(monkeypatch, capsys, number, wrong, message):
    answer(monkeypatch, *[""] * number, wrong, *["1"] * 9)
    assert main(["config"]) == 2
    shown = capsys.readouterr()
    assert message in shown.err and shown.out.count("?") == number + 1


def test_replicas_fit_the_ipus_that_there_are(monkeypatch, capsys):
    """The machine that was described has too few."""
    answer(monkeypatch, "", "", "auto", "4", "8")
    assert main(["config"]) == 2
    assert "8 replicas need at least 8 IPUs, and there are 4" in capsys.readouterr().err


def test_without_pyyaml_no_question_is_asked_in_vain(monkeypatch, capsys):
    """JSON is written by default; a YAML file is refused before the first question."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert main(["config", "--output", "settings.yml"]) == 2
    shown = capsys.readouterr()
    assert "pip install pyyaml" in shown.err and not shown.out
    answer(monkeypatch, "4", *[""] * 9)
    assert main(["config"]) == 0
    assert IPUConfig.load("ipu_config.json") == IPUConfig(gradient_accumulation_steps=4)


@pytest.mark.parametrize("place", ["nowhere/ipu.json", "."])
def test_a_place_that_cannot_be_written_is_refused_before_the_first_question(capsys, place):
    assert main(["config", "--output", place]) == 2
    assert not capsys.readouterr().out


def test_answers_are_not_lost_when_something_ends_the_questions(monkeypatch, capsys):
    """They are printed as JSON, here at an interrupt, and can be used."""
    lines = iter(["4\n", "8\n"])

    def readline():
        for line in lines:
            return line
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(readline=readline, isatty=lambda: True))
    assert main(["config"]) == 130
    last = capsys.readouterr().out.splitlines()[-1]
    assert IPUConfig.from_dict(json.loads(last)) == IPUConfig(gradient_accumulation_steps=4, device_iterations=8)
