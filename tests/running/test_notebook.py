"""Notebooks run as programs: their code cells in order."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ignite_ipu.errors import RunError, UserError
from ignite_ipu.running import run_script

TRAINING = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def update():
    optimizer.zero_grad()
    loss = model(torch.ones(2, 2)).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""


def write(path: Path, *cells: str) -> str:
    written = [{"cell_type": "markdown", "source": ["# Title"]}]
    written += [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    path.write_text(json.dumps({"nbformat": 4, "cells": written}))
    return str(path)


def test_cells_run_in_order_in_one_namespace(tmp_path, capsys):
    substitutions: Any = []
    path = write(tmp_path / "train.ipynb", TRAINING, "first = update()", "print(update() < first, __name__)")
    run_script(path, substitutions=substitutions)
    assert capsys.readouterr().out == "True __main__\n"
    assert "part of the device step" in [each.became for each in substitutions]
    assert {Path(each.file).name for each in substitutions} == {"train.ipynb, cell 1"}


def test_a_refusal_names_the_cell(tmp_path):
    path = write(tmp_path / "train.ipynb", TRAINING, "x = 1\ntorch.ones(1, requires_grad=True).sum().backward()")
    with pytest.raises(RunError, match=r"train.ipynb, cell 2:2: backward\(\) cannot be mapped"):
        run_script(path)


def test_a_module_that_a_cell_imports_stays_imported(tmp_path, monkeypatch):
    """Later cells find the same module; some cannot be imported twice in a process."""
    (tmp_path / "imported_once.py").write_text("numbers = []")
    monkeypatch.syspath_prepend(tmp_path)
    first, second = (
        "import imported_once\nimported_once.numbers.append(1)",
        "import imported_once\nassert imported_once.numbers",
    )
    run_script(write(tmp_path / "train.ipynb", first, second))
    del sys.modules["imported_once"]


def test_syntax_of_ipython_runs_where_it_is_installed(tmp_path, capsys):
    """Cells keep the names that cells without such syntax have, and may end the program."""
    pytest.importorskip("IPython")
    substitutions: Any = []
    ending = "print(update() > -1)\nraise SystemExit(3)"
    path = write(tmp_path / "train.ipynb", "%config Application.log_level = 30\n" + TRAINING, ending)
    with pytest.raises(SystemExit, match="3"):
        run_script(path, substitutions=substitutions)
    assert capsys.readouterr().out.endswith("True\n")
    assert {Path(each.file).name for each in substitutions} == {"train.ipynb, cell 1"}


@pytest.mark.parametrize("text", ["{}", "no json", '{"cells": [1]}'])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "train.ipynb").write_text(text)
    with pytest.raises(UserError, match="is not a notebook"):
        run_script(str(tmp_path / "train.ipynb"))
