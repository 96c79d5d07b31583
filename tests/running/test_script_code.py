"""Which files are a script's own."""

from __future__ import annotations

import json
import sys

import ignite
import torch

import ignite_ipu
from ignite_ipu.running.script_code import ScriptCode


def test_all_that_is_not_installed_is_its_own(tmp_path):
    code = ScriptCode(str(tmp_path / "train.py"))
    assert code.owns(str(tmp_path / "train.py"))
    assert code.owns(str(tmp_path / "models" / "net.py"))
    assert code.owns(str(tmp_path.parent / "project" / "engine.py"))  # as on PYTHONPATH
    assert not code.owns("<string>")
    assert not code.owns(str(tmp_path / ".venv" / "lib" / "python3" / "site-packages" / "tool" / "x.py"))


def test_installed_packages_are_not_even_below_the_script():
    """A script at the root of the file system has everything below it."""
    code = ScriptCode("/train.py")
    for module in (torch, ignite, json, ignite_ipu):
        assert not code.owns(module.__file__)


def test_the_line_of_a_frame():
    code, frame = ScriptCode(__file__), sys._getframe()
    assert code.line_of(frame) == (__file__, frame.f_lineno)
    assert code.line_of(None) is None
    of_pytest = frame.f_back
    assert code.line_of(of_pytest) is None
    assert code.line_of(of_pytest, packages=True) == (of_pytest.f_code.co_filename, of_pytest.f_lineno)


def test_torch_and_ignite_pass_a_call_on():
    code = ScriptCode(__file__)
    found = []

    class Probe(torch.nn.Module):
        def forward(self):
            return None

    probe = Probe()
    probe.register_forward_hook(lambda *arguments: found.append(code.line_behind(sys._getframe(1))))
    probe()  # torch's own frames lie between this line and the hook
    ((line, own),) = found
    assert own and line[0] == __file__
