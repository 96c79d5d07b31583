"""A cell's magics become Python line by line, and come back as they were."""

from __future__ import annotations

import ast

import pytest

from ignite_ipu.errors import SourceError
from ignite_ipu.migration.source.magics import hide_magics, show_magics

CELLS = [
    "%matplotlib inline\nimport torch\n!pip list",
    "%%time\ntrainer = make()",
    "\n%%capture out\nimport torch\n%load_ext x",
    "%%timeit -n 1 x = 3\nf(x)",
    "%time trainer.run(loader)  # slow",
    "for x in y:\n    %time f(x)",
    "%timeit -n 10 -r3 -o f(x)",
    "%prun -l 5 -s cumulative f(x)",
    "a, b = %time f(x)",
    "files = !ls\nfiles",
    "if True:\n    %matplotlib inline\n    !ls",
    "!pip install \\\n    torch \\\n    numpy\nx = 1",
    "model?\n?model\nmodel.forward??",
    "%time for x in y: f(x)",
    "%%memit\nf(x)",
]


@pytest.mark.parametrize("cell", CELLS)
def test_cells_are_python_while_hidden_and_come_back(cell):
    hidden = hide_magics(cell)
    ast.parse("\n".join(hidden))
    assert len(hidden) == len(cell.split("\n"))
    assert "\n".join(show_magics(hidden)) == cell


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ("%%time\nx = f()", "x = f()"),
        ("%time x = f()", "x = f()"),
        ("x = %time f()", "x = f()"),
        ("%timeit -n 10 -r3 f()", "f()"),
        ("%prun -l 5 f()", "f()"),
        ("%matplotlib inline\nx = f()  # really?", "x = f()"),
    ],
)
def test_what_a_magic_runs_is_code(cell, code):
    assert ast.dump(ast.parse("\n".join(hide_magics(cell)))) == ast.dump(ast.parse(code))


@pytest.mark.parametrize("cell", ["%%bash\nls", "%%writefile train.py\nx = 1", "%%python3\nx = 1", "%%dot\na -> b;"])
def test_cells_of_other_languages_and_processes_are_none_of_the_notebooks_python(cell):
    assert hide_magics(cell) is None


def test_a_magic_stays_in_front_of_what_a_rewrite_makes_of_its_statement():
    (line,) = hide_magics("x = %time old(y)")
    assert show_magics([line.replace("x = old(y)", "x, _ = new(y, 1)")]) == ["x, _ = %time new(y, 1)"]


def test_a_cells_own_magic_stays_its_first_line():
    hidden = hide_magics("%%time\nx = 1")
    assert show_magics(["import torch", *hidden]) == ["%%time", "import torch", "x = 1"]


def test_what_leaves_no_place_for_a_magic_is_refused():
    (line,) = hide_magics("%time loss.backward()")
    with pytest.raises(SourceError, match="the statement behind %time becomes a part of another"):
        show_magics([line.replace("loss.backward()", "").strip()])
    with pytest.raises(SourceError, match="imports of the cell of %%timeit -n 1"):
        show_magics(["import torch", *hide_magics("%%timeit -n 1\nx = 1")])
