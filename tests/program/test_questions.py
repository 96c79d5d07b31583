"""`ignite-ipu config` writes what it is answered."""

from __future__ import annotations

import io

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
    """Only those are asked that matter; an empty answer is the default."""
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
