"""The table of GPU calls: complete for the installed PyTorch, and the source of its page."""

from __future__ import annotations

from types import FunctionType

import pytest
import torch

from ignite_ipu.capabilities import Treatment, gpu_capability, gpu_functions
from ignite_ipu.capabilities.gpu import CUDA
from ignite_ipu.errors import RunError
from ignite_ipu.migration.checker import check_source
from ignite_ipu.migration.findings import Outcome
from ignite_ipu.migration.source.file import Source
from ignite_ipu.running import run_script
from tests.capabilities.gpu_page import PAGE, page


def test_the_page_is_generated_from_the_table():
    """`python -m tests.capabilities.gpu_page` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_refusal_has_a_reason_and_a_way_out():
    for name in torch.cuda.__all__:
        entry = gpu_capability(name)
        if entry.treatment is Treatment.REFUSED:
            assert ". " in f"{entry.sentence}. ", name


# Calls without arguments that return at once.
CALLS = sorted(
    name
    for name in torch.cuda.__all__
    if isinstance(getattr(torch.cuda, name), FunctionType) and gpu_capability(name).treatment is not Treatment.HOST
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Call every function of `torch.cuda` in one script, and return the error or result of each."""
    lines = ["import torch\n", "found = {}\n"]
    for name in CALLS:
        lines.append(f"try:\n    found[{name!r}] = repr(torch.cuda.{name}())\n")
        lines.append(f"except Exception as error:\n    found[{name!r}] = type(error).__name__\n")
    lines.append("import json; print(json.dumps(found))\n")
    script = tmp_path_factory.mktemp("cuda") / "script.py"
    script.write_text("".join(lines))
    return script


def test_run_does_what_the_table_says_and_check_says_the_same(outcomes, capsys, monkeypatch):
    import json

    from ignite_ipu import backend

    monkeypatch.setenv(backend.VARIABLE, "emulator")
    with pytest.raises(RunError):  # the first refusal is raised at the end, too
        run_script(str(outcomes))
    found = json.loads(capsys.readouterr().out)
    source = Source("script.py", outcomes.read_text())
    checked = {
        finding.message.split(" ")[0][len(CUDA) + 1 :]: finding.run
        for finding in check_source(source)[0]
        if finding.rule == "cuda-api"
    }
    for name in CALLS:
        entry = gpu_capability(name)
        refused = entry.treatment is Treatment.REFUSED
        assert (found[name] == "RunError") is refused, name
        if not refused:
            assert found[name] == repr(entry.answer), name
        if not entry.harmless:
            assert checked[name] is (Outcome.REFUSED if refused else Outcome.HANDLED), name


def test_other_modules_of_cuda_are_in_the_table():
    left_out = {entry.name for entry in gpu_functions(CUDA, Treatment.LEFT_OUT)}
    assert {"torch.cuda.nvtx.range_push", "torch.cuda.profiler.start"} <= left_out
