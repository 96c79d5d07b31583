"""`import ignite_ipu.auto` runs the GPU program of a process on IPUs, wherever the line stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any, Dict, List

import pytest
import torch
from torch import nn

import ignite_ipu
from ignite_ipu import auto, backend, emulator
from ignite_ipu.deferred import captured
from ignite_ipu.errors import OptionsError, RunError

BEGINNING = """
from torch.nn.utils import clip_grad_norm_
import torch
from torch import nn
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
"""
LOOP = """
for _ in range(3):
    x = torch.randn(8, 3).to(device)
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
print(round(loss.item(), 5))
"""


ROOT = Path(__file__).parents[1]
needs_entry_points = pytest.mark.skipif(
    not hasattr(torch, "_import_device_backends"), reason="PyTorch 2.5 and later load backends"
)


@pytest.fixture(autouse=True)
def _emulator(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(backend.VARIABLE, "emulator")
    auto.off()
    yield
    auto.off()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """Run pieces of a program in one module's namespace, with `auto` on from one of them; returns printed lines."""

    def run(*pieces: str, on_from: int = -1) -> List[str]:
        file = tmp_path / "program.py"
        file.write_text("".join(pieces))
        module = types.ModuleType("program")
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, "program", module)
        for number, piece in enumerate(pieces):
            if number == on_from:
                auto.on()
            exec(compile(piece, str(file), "exec"), vars(module))
        return capsys.readouterr().out.splitlines()

    return run


def updates() -> int:
    return int(emulator.counters().device_calls)


@pytest.mark.parametrize("on_from", [0, 1], ids=["at the top", "late"])
def test_a_loop_trains_on_the_device_with_the_numbers_of_the_host(program, on_from):
    """Names that were imported before, models and optimizers that were made before, are captured, too."""
    native = program(BEGINNING, LOOP)
    before = updates()
    assert program(BEGINNING, LOOP, on_from=on_from) == native
    assert updates() - before == 3


def test_off_restores_everything_and_keeps_current_weights(program):
    originals = nn.Module.__call__, nn.utils.clip_grad_norm_, torch.optim.Optimizer.__init__, sys.excepthook
    native = program(BEGINNING, LOOP, "print(model(torch.ones(1, 3)).item() > -9, model[0].weight.sum().item())")
    found = program(BEGINNING, LOOP, "import ignite_ipu.auto; ignite_ipu.auto.off()\n", on_from=1)
    assert (nn.Module.__call__, nn.utils.clip_grad_norm_, torch.optim.Optimizer.__init__, sys.excepthook) == originals
    assert not auto.is_on() and found == native[:1]
    model = sys.modules["program"].model  # type: ignore[attr-defined]
    assert sys.modules["program"].clip_grad_norm_ is originals[1]  # type: ignore[attr-defined]
    assert model[0].weight.sum().item() == pytest.approx(float(native[1].split()[1]), abs=1e-5)


def test_enabled_is_a_context_for_tests():
    model = nn.Linear(2, 1)
    before = updates()
    with auto.enabled() as made:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 2)).sum().backward()
        optimizer.step()
    assert updates() - before == 1 and not auto.is_on()
    assert "backward()" in [each.original for each in made]
    assert all(each.file == __file__ for each in made)


def test_settings_are_configured_before_the_first_model_is_captured():
    with auto.enabled():
        auto.configure(max_grad_norm=1.0)
        assert auto.is_on()
        optimizer = torch.optim.SGD((model := nn.Linear(2, 1)).parameters(), lr=1.0)
        weights = model.weight.detach().clone()
        (model(torch.ones(2, 2)).sum() * 100).backward()
        optimizer.step()
        moved = torch.cat([(model.weight.detach() - weights).flatten()]).norm().item()
        assert 0.5 < moved < 1.01
        with pytest.raises(OptionsError, match=r"captured with other settings.*configure\(\) before the first model"):
            auto.configure(max_grad_norm=2.0)
    with pytest.raises(OptionsError, match="max_grad_nrom"):
        auto.configure(max_grad_nrom=1.0)


def test_the_environment_has_settings_and_native_runs_are_left_alone(monkeypatch):
    monkeypatch.setenv("IGNITE_IPU_CONFIG", '{"max_grad_norm": "much"}')
    with pytest.raises(OptionsError, match="IGNITE_IPU_CONFIG"):
        auto.on()
    monkeypatch.setenv(backend.VARIABLE, "native")
    auto.on()
    assert not auto.is_on()


def test_an_accelerator_of_before_is_too_late(program):
    with pytest.raises(RunError, match=r"Accelerator cannot be mapped.*before ignite_ipu.auto was imported"):
        program("from accelerate import Accelerator\naccelerator = Accelerator(cpu=True)\n", "pass", on_from=1)
    assert not auto.is_on() and nn.Module.__call__.__module__.startswith("torch")


def test_refusals_show_the_programs_own_frames(program, capsys, monkeypatch):
    bad = "def train():\n    torch.ones(1, requires_grad=True).sum().backward()\ntrain()\n"
    with pytest.raises(RunError) as error:
        program(BEGINNING, bad, on_from=0)
    sys.excepthook(error.type, error.value, error.tb)
    shown = capsys.readouterr().err
    assert "program.py" in shown and "cannot be mapped to IPUs" in shown and f"{os.sep}running{os.sep}" not in shown
    auto.traceback()
    assert f"{os.sep}running{os.sep}" in capsys.readouterr().err
    monkeypatch.setenv("IGNITE_IPU_DEBUG", "1")
    sys.excepthook(error.type, error.value, error.tb)
    assert f"{os.sep}running{os.sep}" in capsys.readouterr().err


def run(words: List[str], folder: Path, **variables: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


ACCELERATED = """
from accelerate import Accelerator
from ignite.engine import create_supervised_trainer
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accelerator = Accelerator()
trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.mse_loss, device="cuda")
trainer.run([(torch.ones(2, 2), torch.ones(2, 1))] * 3, 1)
from ignite_ipu import auto, emulator
print(type(accelerator).__name__, emulator.counters().device_calls, auto.is_on())
"""


LOADED = "print(*sorted(name for name in sys.modules if name.startswith('ignite_ipu')))"


@pytest.fixture
def installed(tmp_path: Path) -> Dict[str, str]:
    """Return environment variables with which Python finds the entry points of `pyproject.toml`, as once installed."""
    folder = tmp_path / "environment" / "ignite_ipu-0.dist-info"
    folder.mkdir(parents=True)
    text = (ROOT / "pyproject.toml").read_text()
    (entry,) = re.findall(r'^\[project.entry-points."torch.backends"\]\n(\w+) = "([\w:]+)"$', text, re.MULTILINE)
    (folder / "entry_points.txt").write_text("[torch.backends]\n{} = {}\n".format(*entry))
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: ignite-ipu\nVersion: 0\n")
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder.parent)])}


@needs_entry_points
def test_the_variable_turns_it_on_where_nothing_is_changed(tmp_path, installed):
    """Also where PyTorch is first imported by accelerate, which is half imported then."""
    (tmp_path / "train.py").write_text(ACCELERATED)
    assert run([sys.executable, "train.py"], tmp_path, IGNITE_IPU_AUTO="1", **installed) == "IPUAccelerator 3 True\n"


@needs_entry_points
def test_without_the_variable_pytorch_imports_nothing_of_the_package(tmp_path, installed):
    """The entry point is a module of its own, whose import takes less than a hundredth of PyTorch's."""
    words = [sys.executable, "-c", f"import sys, torch\n{LOADED}"]
    assert run(words, tmp_path, IGNITE_IPU_AUTO="", **installed) == "ignite_ipu_autoload\n"


@pytest.fixture
def with_the_line(tmp_path: Path) -> Path:
    """Return the folder of a script, and of a test that imports it."""
    (tmp_path / "train.py").write_text("import ignite_ipu.auto\n" + textwrap.dedent(ACCELERATED))
    (tmp_path / "test_train.py").write_text("def test():\n    import train\n")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["torch.distributed.run", "--standalone", "--nproc-per-node=1", "train.py"],
        ["accelerate.commands.launch", "--num_processes=1", "--cpu", "train.py"],
    ],
    ids=lambda words: words[0],
)
def test_launchers_start_a_script_with_the_line(words, with_the_line, processes):
    done = processes.run(["-m", *words], cwd=with_the_line, check=True, forks=True)
    assert "IPUAccelerator 3 True" in done.stdout


def test_tests_import_a_script_with_the_line(with_the_line):
    """Python has imported none of the libraries before pytest imports the script."""
    words = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "test_train.py"]
    assert "IPUAccelerator 3 True" in run(words, with_the_line)


CORPUS = Path(__file__).parent / "migration" / "corpus"
SAMPLE = ["accumulation_ignite", "custom_engine", "ddp", "metrics_evaluation", "two_optimizers"]


@pytest.mark.parametrize("name", SAMPLE)
def test_scripts_of_the_corpus_end_with_the_native_result(name, scripts, tmp_path):
    """`ignite-ipu run` trains all of them; this is the other door to the same substitutes."""
    pytest.importorskip("sklearn")
    text = (CORPUS / f"{name}.py").read_text()
    path = tmp_path / f"{name}.py"
    path.write_text("import ignite_ipu.auto\n" + text)
    native, found = scripts.run(CORPUS / f"{name}.py", "native"), scripts.run(path, "emulator")
    assert found.numbers == pytest.approx(native.numbers, rel=1e-4, abs=1e-6)
    assert found.updates > 0


CELLS: Dict[str, str] = {
    "begin": "import ignite_ipu.auto\n" + BEGINNING,
    "loop": LOOP,
    "refused": "w = torch.ones(1, requires_grad=True)\nw.sum().backward()",
    "record": "loss = model(torch.ones(8, 3)).pow(2).mean()\nloss",
    "interrupted": "loss.backward()\nraise KeyboardInterrupt",
    "go on": "optimizer.zero_grad()",
}


def test_a_notebooks_cells_run_in_any_order(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    order = ["begin", "loop", "refused", "loop", "record", "interrupted", "go on", "loop"]
    cells = [nbformat.v4.new_code_cell(CELLS[name]) for name in order]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=200, allow_errors=True).execute()
    texts = [_text(cell) for cell in notebook.cells]
    numbers = [float(texts[place].splitlines()[-1]) for place in (1, 3, 7)]
    assert len(set(numbers)) == 3, "each run of the loop trains on"
    assert "cannot be mapped to IPUs" in texts[2]
    if version("accelerate") >= "1":  # earlier ones have rich print all frames of an error
        assert len(texts[2].splitlines()) < 14
    assert "known after optimizer.step()" in texts[4], texts[4]


def _text(cell: Any) -> str:
    """Return the printed text of a cell, which may arrive in pieces of a line, then its tracebacks and its result."""
    printed = "".join(output.get("text", "") for output in cell.outputs)
    tracebacks = ["\n".join(output["traceback"]) for output in cell.outputs if "traceback" in output]
    data = [output["data"]["text/plain"] for output in cell.outputs if "data" in output]
    return "\n".join(filter(None, [printed.rstrip("\n"), *tracebacks, *data]))


def test_settings_spread_a_model_over_ipus():
    with auto.enabled():
        auto.configure(pipeline=["0", "1"], execution="sharded")
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        assert captured(model).session.training.ipus == 2  # type: ignore[union-attr]


def test_the_extension_of_a_notebook_turns_it_on_and_off():
    """`%load_ext ignite_ipu` and `%unload_ext ignite_ipu` call these; no other import of names finds them."""
    assert not {name for name in ignite_ipu.__all__ if "extension" in name}
    ignite_ipu.load_ipython_extension(None)
    assert auto.is_on()
    ignite_ipu.unload_ipython_extension(None)
    assert not auto.is_on()
