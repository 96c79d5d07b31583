"""`ignite-ipu run`: the script's exit code, and one line for code that cannot be mapped."""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from ignite_ipu import handlers
from ignite_ipu.cli.command import main


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        return str(path)

    return write


def test_options_after_the_script_are_the_scripts(script, capsys):
    path = script("import sys; print(sys.argv[1:])")
    assert main(["run", path, "--quiet", "--lr", "0.1", "-h"]) == 0
    assert capsys.readouterr().out == "['--quiet', '--lr', '0.1', '-h']\n"


def test_substitutions_are_listed_once_on_standard_error(script, capsys):
    path = script("import torch\nfor _ in range(2):\n    torch.ones(1).to('cuda')\n")
    assert main(["run", path]) == 0
    assert capsys.readouterr().err.count("ignite-ipu: train.py:3: tensor.to('cuda') -> stays on the host\n") == 1
    assert main(["run", "--quiet", path]) == 0
    assert "train.py" not in capsys.readouterr().err


def test_settings_come_from_a_file_and_the_command_line(script, capsys, tmp_path):
    """They are listed, too; the command line goes before the file, and a wrong file ends it."""
    file, path = tmp_path / "ipu.json", script("print('ran')")
    file.write_text('{"replication_factor": 4, "seed": 3}')
    assert main(["run", "--ipu-config", str(file), "--replication-factor", "2", path]) == 0
    assert "ignite-ipu: IPUConfig(replication_factor=2, seed=3)" in capsys.readouterr().err
    file.write_text('{"sead": 3}')
    assert main(["run", "--ipu-config", str(file), path]) == 2
    assert f"{file}: There is no setting 'sead'. Did you mean 'seed'?" in capsys.readouterr().err
    assert main(["run", "--ipu-config", str(tmp_path / "none.json"), path]) == 2
    assert main(["run", "--replication-factor", "0", path]) == 2


def test_a_program_that_uses_poptorch_refuses_settings(script, capsys):
    """They would have no effect; without settings it runs."""
    path = script("import poptorch\nprint('ran')\n")
    assert main(["run", "--set", "seed=3", path]) == 2
    assert "uses PopTorch itself, so that IPUConfig(seed=3) would have no effect" in capsys.readouterr().err
    assert main(["run", path]) == 0


def test_the_scripts_exit_code_is_the_commands(script):
    with pytest.raises(SystemExit) as ended:
        main(["run", script("import sys; sys.exit(5)")])
    assert ended.value.code == 5


def test_an_exception_of_the_script_is_shown_from_the_script_on(script, capsys):
    assert main(["run", script("def fail():\n    raise KeyError('x')\nfail()\n")]) == 1
    shown = capsys.readouterr().err
    assert shown.index("Traceback") < shown.index("train.py") and "runpy" not in shown
    assert "bug in ignite-ipu" not in shown


@pytest.mark.parametrize("text", ["import torch", "import ignite_ipu.handlers.warmup_of_tests"])
def test_an_import_of_ours_that_fails_is_a_bug_of_ours(text, script, capsys, monkeypatch):
    """Before the script runs, or when it imports a module: as with a version that lacks a name, say."""
    if text == "import torch":
        monkeypatch.setattr("ignite_ipu.running.script.ScriptCode", {}.__getitem__)
    else:
        source = Path(handlers.__file__).with_name("warmup_of_tests.py")
        loader = SourceLoaderOf(str(source), "import torch\ntorch.no_such_name\n")
        monkeypatch.setattr("sys.meta_path", [loader, *sys.meta_path])
    assert main(["run", script(text)]) == 70
    assert "this is a bug in ignite-ipu" in capsys.readouterr().err


def test_a_refusal_is_one_line_and_exit_code_2(script, capsys):
    path = script("import torch\ntorch.cuda.get_rng_state()\n")
    assert main(["run", path]) == 2
    shown = capsys.readouterr().err
    assert f"{path}:2: torch.cuda.get_rng_state() cannot be mapped" in shown and "Traceback" not in shown


def test_python_s_arguments_are_put_back(script):
    before = list(sys.argv), list(sys.path)
    main(["run", script("import sys; sys.argv.append('x'); sys.path.append('y')")])
    assert (list(sys.argv), list(sys.path)) == before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("folder", None, "folder' is a directory; name the script in it"),
        ("model.bin", b"\x80\x02PK\xff", "model.bin' is not a Python script: "),
        ("archive.py", b"PK\x03\x04\x00\x00", "archive.py' is not a Python script: it contains null bytes"),
    ],
)
def test_what_is_no_script_is_the_users_error(tmp_path, capsys, name, content, message):
    path = tmp_path / name
    path.mkdir() if content is None else path.write_bytes(content)
    assert main(["run", str(path)]) == 2
    shown = capsys.readouterr().err
    assert message in shown and "Traceback" not in shown


def test_a_mistake_in_the_script_s_text_is_shown_as_python_shows_it(script, capsys):
    path = script("import torch\ndef f(:\n    pass\n")
    assert main(["run", path]) == 1
    shown = capsys.readouterr().err
    assert f'File "{path}", line 2' in shown and "SyntaxError" in shown
    assert "ignite_ipu" not in shown and "runpy" not in shown


def test_the_causes_of_an_exception_are_shown(script, capsys):
    text = "try:\n    {}['x']\nexcept KeyError as error:\n    raise RuntimeError('no such key') from error\n"
    assert main(["run", script(text)]) == 1
    shown = capsys.readouterr().err
    assert "KeyError: 'x'" in shown and "direct cause" in shown and "RuntimeError: no such key" in shown
    assert "ignite_ipu" not in shown


class SourceLoaderOf(importlib.abc.SourceLoader, importlib.abc.MetaPathFinder):
    """Imports one module from a text, as from a file of this package."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        is_it = name.rpartition(".")[2] == Path(self.path).stem
        return importlib.util.spec_from_loader(name, self, origin=self.path) if is_it else None

    def get_filename(self, name: str) -> str:
        return self.path

    def get_data(self, path: Any) -> bytes:
        return self.text.encode()


UNTIL_STOPPED = """
import torch
model = torch.nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def update():
    optimizer.zero_grad()
    loss = model(torch.ones(8, 4)).mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""


def _stop(process, sent):
    """Send a signal, again while it shows no effect: Python drops an interrupt that arrives in a finalizer."""
    for _ in range(6):
        process.send_signal(sent)
        try:
            return process.wait(10)
        except TimeoutError:
            continue
    return pytest.fail(f"signal {sent} has no effect")


def test_a_stopped_run_leaves_its_ipus_to_the_next(script, tmp_path, processes):
    """There is one IPU: the second run trains on that of the terminated one."""
    path = script(f"{UNTIL_STOPPED}print(update(), flush=True)\nwhile True:\n    update()\n")
    environment = {
        **os.environ,
        "IGNITE_IPU_BACKEND": "emulator",
        "IGNITE_IPU_EMULATED_IPUS": "1",
        "IGNITE_IPU_RUNTIME_DIR": str(tmp_path),
    }
    command = ["-m", "ignite_ipu", "run", "--quiet", path]
    for sent, code in ((signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)):
        with processes.start(command, env=environment) as process:
            float(process.line())
            assert _stop(process, sent) == code
        assert "Traceback" not in process.errors()


@pytest.mark.parametrize(
    ("layer", "notes"),
    [("Dropout(0.5)", 1), ("TransformerEncoderLayer(4, 2, 4)", 1), ("Dropout(0.0)", 0), ("Identity()", 0)],
)
def test_other_random_numbers_of_dropout_are_said_once(script, capsys, layer, notes):
    path = script(
        "import torch\nfrom torch import nn\n"
        f"model = nn.Sequential(nn.Linear(4, 4), nn.{layer}, nn.Linear(4, 1)).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(2):\n"
        "    optimizer.zero_grad()\n    model(torch.ones(8, 2, 4)).mean().backward()\n    optimizer.step()\n"
    )
    assert main(["run", path]) == 0
    assert capsys.readouterr().err.count("dropout -> the device draws other random numbers than a GPU") == notes
