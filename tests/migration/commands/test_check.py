"""`ignite-ipu check` from the command line: its exit codes and its choices."""

from __future__ import annotations

import argparse
import json

import pytest

from ignite_ipu.errors import UserError
from ignite_ipu.migration.commands.check import add_arguments, main


def run(*arguments):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return main(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "code.py"
    path.write_text("import torch\nx.cuda()\ntorch.load('a')\ntorch.optim.SGD(p, lr=1, fused=True)\n")
    return path


def test_exit_code_says_whether_something_was_found(code, tmp_path, capsys):
    clean = tmp_path / "clean.py"
    clean.write_text("x = 1\n")
    assert run(clean) == 0
    assert run(code) == 1
    assert "[cuda-device]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("chosen", "limit", "expected"),
    [
        ("cuda-device", "error", 1),
        ("checkpoint-device", "error", 0),
        ("checkpoint-device", "warning", 1),
        ("ignored-optimizer-argument", "warning", 0),
        ("ignored-optimizer-argument", "note", 1),
        ("cuda-device", "never", 0),
    ],
)
def test_fail_on_sets_the_limit(code, chosen, limit, expected):
    assert run(code, "--select", chosen, "--fail-on", limit) == expected


def test_select_and_ignore(code, capsys):
    run(code, "--format", "json", "--ignore", "cuda-device, checkpoint-device")
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["rule"] == "ignored-optimizer-argument"


def test_a_script_that_runs_unchanged_has_a_clean_bill_for_run(tmp_path, capsys):
    """Findings depend on the purpose: to run, to migrate, or to port by hand."""
    code = tmp_path / "code.py"
    code.write_text("import torch\nx.cuda()\nx.register_full_backward_hook(print)\n")

    def found(purpose):
        status = run(code, "--format", "json", "--for", purpose)
        return status, [finding["rule"] for finding in json.loads(capsys.readouterr().out)["findings"]]

    assert found("source") == (1, ["cuda-device", "gradient-access"])
    assert found("run") == (1, ["gradient-access"])
    code.write_text("import torch\nx.cuda()\ntorch.save(torch.load('a'), 'b')\n")
    assert found("run") == found("migrate") == (0, [])
    assert run(code, "--for", "run") == 0
    assert "nothing found (2 left out)" in capsys.readouterr().out


def test_output_file(code, tmp_path, capsys):
    target = tmp_path / "out.sarif"
    assert run(code, "--format", "sarif", "-o", target) == 1
    assert json.loads(target.read_text())["version"] == "2.1.0"
    assert capsys.readouterr().out == ""


def test_colour_follows_the_environment(code, monkeypatch, capsys):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    run(code)
    assert "\033[" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    run(code)
    assert "\033[" not in capsys.readouterr().out


def test_list_rules(capsys):
    assert run("--list-rules") == 0
    assert "cuda-device" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs a PATH"),
        (["/does/not/exist"], "No such file"),
        ([".", "--select", "nothing-of-the-kind"], "no rule 'nothing-of-the-kind'"),
    ],
)
def test_wrong_use_is_the_users_error(arguments, message):
    with pytest.raises(UserError, match=message):
        run(*arguments)


def test_an_output_that_cannot_be_written(code, tmp_path):
    with pytest.raises(UserError, match="cannot write"):
        run(code, "-o", tmp_path / "no" / "such" / "directory")


def test_selecting_rules_never_hides_an_unreadable_file(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("(")
    assert run(broken, "--select", "cuda-device") == 1
