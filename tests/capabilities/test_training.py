"""The table of names in training programs: `run` and `check` treat each example as the table says."""

from __future__ import annotations

import contextlib
import logging
import textwrap

import pytest
import torch

from ignite_ipu import backend
from ignite_ipu.capabilities import (
    Capability,
    Treatment,
    argument_capability,
    gpu_capability,
    gpu_functions,
    optimizer_capability,
)
from ignite_ipu.capabilities.gpu import ACCELERATOR, CUDA
from ignite_ipu.errors import RunError
from ignite_ipu.migration.checker import check_source
from ignite_ipu.migration.findings import Outcome
from ignite_ipu.migration.source.file import Source
from ignite_ipu.operators import table as operator_table
from ignite_ipu.optimizers.kinds import KINDS
from ignite_ipu.running import run_script
from tests.capabilities.training_page import PAGE, TABLES, page

ENTRIES = [entry for _, table in TABLES for entry in table]
LOOP = """\
import torch
import ignite.distributed as idist
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, seen = torch.randn(8, 4), []


def closure():
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    return loss


for step in range(3):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
print(*(value for weight in model.parameters() for value in weight.flatten().tolist()))
"""


def program(entry: Capability) -> str:
    if not entry.replaces:
        return LOOP.replace("    optimizer.step()\n", f"    {entry.example}\n    optimizer.step()\n")
    head, _, loop = LOOP.partition("for step")
    if entry.replaces in head and entry.replaces not in loop:
        return LOOP.replace(entry.replaces, entry.example)
    replaced = loop.replace(entry.replaces, entry.example)
    return f"{head}for step{replaced}"


def test_the_page_is_generated_from_the_table():
    """`python -m tests.capabilities.training_page` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_refusals_and_updates_on_the_host_have_a_reason():
    for entry in ENTRIES:
        assert entry.sentence, entry.name
        assert entry.remedy or entry.treatment is not Treatment.REFUSED, entry.name


def test_each_entry_has_a_row_of_the_documentation_that_refusals_name():
    """An optimizer, or a call of a GPU, that no row has belongs to the rest of its page."""
    entries = [*ENTRIES, *gpu_functions(CUDA, *Treatment), *gpu_functions(ACCELERATOR, *Treatment)]
    docs = [entry.docs for entry in entries]
    assert len(set(docs)) == len(docs)
    for entry in (*entries, optimizer_capability("torch.optim.Adagrad"), gpu_capability("unknown")):
        page, _, anchor = entry.docs.partition("#")
        text = (PAGE.parents[1] / page).read_text(encoding="utf-8")
        assert not anchor or text.count(f'<a id="{anchor}"></a>`{entry.name}`') == 1, entry.docs


def test_arguments_of_operators_are_in_the_table_of_operators_alone():
    """Such as `label_smoothing`: the compiler reads them where a name of this table is of the loop around the model."""
    for entry in ENTRIES:
        function = entry.name.partition("(")[0]
        assert not operator_table.restrictions_of(function), entry.name
    (restriction,) = (
        each
        for each in operator_table.restrictions_of("torch.nn.functional.cross_entropy")
        if "label_smoothing" in each.argument
    )
    assert restriction.instead
    computed = "torch.nn.functional.cross_entropy"
    script = LOOP.replace("model(x).pow(2).mean()", f"{computed}(model(x), x.argmax(1) % 3, label_smoothing=0.1)")
    found = [each for each in check_source(Source("script.py", script))[0] if "label_smoothing" in each.message]
    assert all(each.run is Outcome.HANDLED for each in found)


def _exists(entry: Capability) -> bool:
    return not entry.name.startswith("torch.Tensor.register") or hasattr(torch.Tensor, entry.last)


SHOWN = [entry for entry in ENTRIES if entry.example and _exists(entry)]


@pytest.mark.filterwarnings("ignore")  # about old names, and about create_graph
@pytest.mark.parametrize("entry", SHOWN, ids=lambda entry: entry.name)
def test_an_example_is_treated_as_the_table_has_it(entry, tmp_path, monkeypatch, capsys, caplog):
    if entry.name == "torch.autograd.backward" and not hasattr(torch, "compiler"):
        pytest.skip("the function of PyTorch 2.0 asks no tensor, and refuses those that are deferred")
    path = tmp_path / "script.py"
    path.write_text(program(entry))
    monkeypatch.setenv(backend.VARIABLE, "native")
    run_script(str(path))
    expected = [float(number) for number in capsys.readouterr().out.split()]
    monkeypatch.setenv(backend.VARIABLE, "emulator")
    refused = entry.treatment is Treatment.REFUSED
    with pytest.raises(RunError) if refused else contextlib.nullcontext() as error:
        with caplog.at_level(logging.WARNING, "ignite_ipu"):
            run_script(str(path))
    if refused:
        assert entry.sentence in str(error.value)
        if entry.name.startswith("torch.nn.Module.register"):
            assert f"Read more: {entry.docs}" in str(error.value)
        return
    assert [float(number) for number in capsys.readouterr().out.split()] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert ("Weights are updated on the host" in caplog.text) is (entry.treatment is Treatment.UPDATES_ON_HOST)


@pytest.mark.parametrize("entry", SHOWN, ids=lambda entry: entry.name)
def test_check_reports_an_example_with_the_outcome_of_the_table(entry):
    findings, _ = check_source(Source("script.py", program(entry)))
    line = next(number for number, text in enumerate(program(entry).splitlines(), 1) if _first(entry) in text)
    outcomes = {each.run for each in findings if line <= each.line <= line + 1 and each.rule != "hand-written-step"}
    if entry.treatment in (Treatment.REFUSED, Treatment.UPDATES_ON_HOST):
        assert Outcome.of(entry) in outcomes
    else:
        assert not outcomes & {Outcome.REFUSED, Outcome.ON_HOST}


def _first(entry: Capability) -> str:
    return textwrap.dedent(entry.example).splitlines()[0]


def test_optimizers_are_those_that_are_converted():
    on_device = {entry.last for entry in ENTRIES if "optim." in entry.name and entry.treatment is Treatment.DEVICE}
    assert {name for name in on_device if name[0].isupper() and name != "Optimizer"} == set(KINDS)
    assert optimizer_capability("torch.optim.Adagrad").treatment is Treatment.UPDATES_ON_HOST
    assert argument_capability("torch.optim.Adam", "lr") is None
