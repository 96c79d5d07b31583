"""Findings of the rules and of a trace, listed once, in every form of output."""

from __future__ import annotations

import argparse
import json

import pytest

from ignite_ipu.migration.commands.check import add_arguments, main

CODE = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls = 0
        self.history = []

    def forward(self, x):
        if x.sum() > 0:
            self.calls += 1
        self.history.append(1)
        return self.layer(x) * torch.linalg.svd(x)[1] / self.calls


def make():
    return Net(), torch.ones(4, 4)
"""


def run(*arguments):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return main(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "code.py"
    path.write_text(CODE)
    return path


def findings(capsys):
    return [
        (finding["path"], finding["line"], finding["rule"], finding["severity"])
        for finding in json.loads(capsys.readouterr().out)["findings"]
    ]


def test_run_alone(code, capsys):
    assert run("--run", f"{code}:make", "--format", "json") == 1
    assert findings(capsys) == [
        (str(code), 13, "data-dependent-control-flow", "error"),
        (str(code), 14, "mutated-python-state", "warning"),
        (str(code), 15, "mutated-python-state", "warning"),
        (str(code), 16, "captured-constant", "error"),
        (str(code), 16, "unsupported-operator", "error"),
    ]


def test_a_line_is_reported_once_by_whoever_finds_it_worse(code, capsys):
    """The static rule and the trace find the same in lines 14 and 15."""
    run("code.py", "--run", "code.py:make", "--format", "json")
    assert findings(capsys) == [
        ("code.py", 13, "data-dependent-control-flow", "error"),
        ("code.py", 14, "mutated-python-state", "warning"),
        ("code.py", 15, "mutated-python-state", "warning"),
        ("code.py", 16, "captured-constant", "error"),
        ("code.py", 16, "unsupported-operator", "error"),
    ]


def test_a_module_is_found_in_the_directory_of_the_call(code, capsys):
    code.rename(code.with_name("traced_module_for_a_test.py"))
    run("--run", "traced_module_for_a_test:make", "--format", "json")
    assert {path for path, *_ in findings(capsys)} == {"traced_module_for_a_test.py"}


def test_the_verdict_is_in_every_form(code, capsys):
    run("--run", "code.py:make")
    assert "code.py:make: does not compile for inference\n" in capsys.readouterr().out
    run("--run", "code.py:make", "--format", "json")
    assert json.loads(capsys.readouterr().out)["run"] == {"target": "code.py:make", "compiled": []}
    run("--run", "code.py:make", "--format", "sarif")
    (log,) = json.loads(capsys.readouterr().out)["runs"]
    assert {result["ruleId"] for result in log["results"]} >= {"captured-constant"}
    assert log["invocations"][0]["properties"]["run"] == {"target": "code.py:make", "compiled": []}


def test_select_and_exit_code(code, capsys):
    assert run("--run", "code.py:make", "--select", "captured-constant", "--format", "json") == 1
    assert {rule for _, _, rule, _ in findings(capsys)} == {"captured-constant"}
    assert run("--run", "code.py:make", "--select", "print-in-forward") == 0


def test_what_compiles_is_said(tmp_path, capsys):
    path = tmp_path / "fine.py"
    path.write_text("import torch\n\n\ndef make():\n    return torch.nn.Linear(4, 2), torch.ones(4, 4)\n")
    assert run("--run", f"{path}:make") == 0
    assert capsys.readouterr().out == f"{path}:make: compiles for inference\n"


def test_suppressions_count(code, capsys):
    code.write_text(CODE.replace("x.sum() > 0:", "x.sum() > 0:  # ignite-ipu: ignore[data-dependent-control-flow]"))
    run("--run", "code.py:make", "--format", "json")
    assert 13 not in {line for _, line, _, _ in findings(capsys)}
