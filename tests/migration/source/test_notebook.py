"""Notebooks are one program to read, and come back cell by cell with everything else untouched."""

from __future__ import annotations

import json

import pytest

from ignite_ipu.errors import SourceError
from ignite_ipu.migration.checker import check_source
from ignite_ipu.migration.migrator import migrate_source
from ignite_ipu.migration.source.file import decode_source
from ignite_ipu.migration.source.notebook import Notebook


def notebook(*cells, **metadata):
    content = {
        "cells": [
            {"cell_type": "markdown", "metadata": {}, "source": ["# Title\n", "text"]},
            *(
                {
                    "cell_type": "code",
                    "execution_count": number,
                    "metadata": {"tags": ["keep"]},
                    "outputs": [{"output_type": "stream", "name": "stdout", "text": ["ünchanged\n"]}],
                    "source": cell,
                }
                for number, cell in enumerate(cells, 1)
            ),
        ],
        "metadata": {"kernelspec": {"name": "python3", "language": "python"}, **metadata},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


IMPORTS = ["%matplotlib inline\n", "import torch\n", "!pip list"]
MODEL = "model = torch.nn.Linear(4, 2).cuda()\nmodel?"
SHELL = "%%bash\nls --cuda"
TRAIN = [
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n",
    "criterion = torch.nn.MSELoss()\n",
    "model.train()\n",
    "for x, y in loader:\n",
    "    optimizer.zero_grad()\n",
    "    output = model(x)\n",
    "    loss = criterion(output, y)\n",
    "    loss.backward()\n",
    "    optimizer.step()\n",
    "%time run(\n",
]


def test_findings_name_the_cell_and_its_line():
    source = decode_source("n.ipynb", notebook(IMPORTS, MODEL, SHELL, TRAIN))
    findings, _ = check_source(source)
    found = {(finding.rule, finding.cell, finding.line) for finding in findings}
    assert ("cuda-device", 2, 1) in found
    assert ("hand-written-step", 4, 8) in found
    assert findings[0].place == "n.ipynb:cell 2:1:9"


def test_untouched_notebooks_come_back_byte_for_byte():
    data = notebook(IMPORTS, MODEL, SHELL, TRAIN)
    source = decode_source("n.ipynb", data)
    assert source.encode(source.text) == data


def test_migration_changes_only_the_code_it_is_about():
    data = notebook(IMPORTS, MODEL, SHELL, TRAIN)
    source = decode_source("n.ipynb", data)
    migration = migrate_source(source)
    assert not migration.blocked
    before, after = json.loads(data), json.loads(source.encode(migration.text))
    new = "from ignite_ipu import host_device, ipu_prepare\n"
    assert after["cells"][1]["source"] == ["%matplotlib inline\n", "import torch\n", new, "!pip list"]
    assert after["cells"][2]["source"] == "model = torch.nn.Linear(4, 2).to(host_device())\nmodel?"
    optimizer = "optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)\n"
    assert after["cells"][4]["source"] == [optimizer, *TRAIN[1:]]
    for part in (before, after):
        for index in (1, 2, 4):
            del part["cells"][index]["source"]
    assert before == after


def test_migrated_notebooks_are_clean_and_stay_as_they_are():
    source = decode_source("n.ipynb", notebook(IMPORTS, MODEL, TRAIN))
    again = decode_source("n.ipynb", source.encode(migrate_source(source).text))
    assert [f for f in check_source(again)[0] if f.severity.value == "error"] == []
    assert not migrate_source(again).changed


def test_python_that_looks_like_magic_is_python():
    """A continued expression may begin with a percent sign, and a text end in a question mark."""
    text = 'x = ("%d"\n% 3)\n# really?\n'
    assert text.rstrip("\n") in Notebook.parse(notebook(text)).text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "not a notebook"),
        (b"[]", 'no list "cells"'),
        (b'{"cells": 3}', 'no list "cells"'),
        (b"\xff\xfe", "not a notebook"),
        (b"[" * 100_000, "not a notebook"),
        (notebook("x = 1", language_info={"name": "julia"}), "julia, not in Python"),
        (b'{"cells": [{"cell_type": "code", "source": 3}]}', "neither text nor a list"),
    ],
)
def test_other_files_are_refused(data, message):
    with pytest.raises(SourceError, match=message):
        decode_source("n.ipynb", data)


def test_cells_that_cannot_be_told_apart_are_refused():
    parsed = Notebook.parse(notebook("x = 1", "y = 2"))
    with pytest.raises(SourceError, match="cannot be told apart"):
        parsed.replace(parsed.text.replace('"ignite-ipu: notebook cell 2"\n', ""))


def test_syntax_errors_are_placed_in_their_cell():
    (finding,), _ = check_source(decode_source("n.ipynb", notebook("x = 1", "y = (")))
    assert (finding.rule, finding.cell, finding.line) == ("unreadable-source", 2, 1)


@pytest.mark.parametrize("magic", ["%%time\n", "%%capture out\n", "%time "])
def test_what_magics_run_is_migrated_with_the_rest(magic):
    """A timed cell that stayed as it is would train on the host."""
    setup = (
        "import torch\nfrom ignite.engine import create_supervised_trainer\n"
        'device = "cuda"\nmodel = torch.nn.Linear(4, 2).to(device)\n'
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    )
    train = f"{magic}trainer = create_supervised_trainer(model, optimizer, torch.nn.MSELoss(), device=device)"
    source = decode_source("n.ipynb", notebook(setup, train))
    assert ("native-ignite-engine", 2) in {(finding.rule, finding.cell) for finding in check_source(source)[0]}
    migration = migrate_source(source)
    assert not migration.blocked
    cells = json.loads(source.encode(migration.text))["cells"]
    assert (
        cells[2]["source"]
        == f"{magic}trainer = create_ipu_trainer(model, optimizer, torch.nn.MSELoss(), drop_last=False)"
    )


def test_a_magic_in_front_of_a_part_of_a_step_stays():
    train = [line.replace("loss.backward()", "%time loss.backward()") for line in TRAIN]
    source = decode_source("n.ipynb", notebook(IMPORTS, MODEL, train))
    migration = migrate_source(source)
    assert not migration.blocked
    assert json.loads(source.encode(migration.text))["cells"][3]["source"][1:] == train[1:]
