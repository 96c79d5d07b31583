"""`ignite-ipu env` answers whatever is missing or broken."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import torch

import ignite_ipu
from ignite_ipu.cli import environment
from ignite_ipu.cli.command import main


def _gc_info(folder, text, monkeypatch):
    tool = folder / "gc-info"
    tool.write_text(f"#!/bin/sh\n{text}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_versions_are_those_installed(capsys):
    assert main(["env", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert torch.__version__.startswith(report["versions"]["torch"])
    assert report["versions"]["python"].startswith(platform.python_version())
    assert set(report) == {"versions", "sdk", "backend", "devices", "environment variables"}


def test_text_has_one_line_per_fact(capsys):
    assert main(["env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "versions" in lines
    assert [line.split()[0] for line in lines if line.startswith("  torch ")] == ["torch"]


def test_variables_of_the_sdk_are_shown_and_others_are_not(monkeypatch):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.all":"true"}')
    monkeypatch.setenv("MY_API_TOKEN", "secret")
    found = environment.report()
    assert found["environment variables"]["POPLAR_ENGINE_OPTIONS"] == '{"autoReport.all":"true"}'
    assert "secret" not in json.dumps(found)


def test_devices_are_what_the_sdk_lists(tmp_path, monkeypatch):
    _gc_info(tmp_path, "echo 'Id: [0], type: [PCIe]'; echo 'Id: [1], type: [PCIe]'", monkeypatch)
    found = environment.report()
    assert found["devices"]["found"] == "Id: [0], type: [PCIe]\nId: [1], type: [PCIe]"
    assert found["sdk"]["gc-info"] == str(tmp_path / "gc-info")
    assert "  found  Id: [0], type: [PCIe]\n         Id: [1], type: [PCIe]\n" in environment.render(found)


def test_a_device_tool_that_hangs_or_fails_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "_DEVICE_LISTER_SECONDS", 0.2)
    _gc_info(tmp_path, "exec sleep 30", monkeypatch)
    assert "TimeoutExpired" in environment.report()["devices"]["found"]
    _gc_info(tmp_path, "exit 3", monkeypatch)
    assert environment.report()["devices"]["found"] == "gc-info printed nothing (exit code 3)"


def test_without_any_dependency_there_is_still_a_report(tmp_path):
    """An interpreter that sees the package and nothing else, as after a broken installation."""
    package = os.path.dirname(os.path.dirname(ignite_ipu.__file__))
    code = f"import sys; sys.path.append({package!r}); "
    code += "from ignite_ipu.cli.command import main; sys.exit(main(['env', '--json']))"
    run = subprocess.run(
        [sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, check=True, text=True, env={"PATH": str(tmp_path)}
    )
    report = json.loads(run.stdout)
    assert report["versions"]["torch"] == "not installed"
    assert report["sdk"]["enabled"].startswith("no")
    assert report["backend"]["in use"].startswith("not known: ")


def test_a_backend_that_cannot_be_had_is_reported(monkeypatch):
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "quantum")
    found = environment.report()
    assert found["backend"]["in use"].startswith("not known: ValueError: IGNITE_IPU_BACKEND='quantum'")
    assert found["environment variables"]["IGNITE_IPU_BACKEND"] == "quantum"
