"""`ignite-ipu run`: the script's exit code, and one line for what cannot be mapped."""

from __future__ import annotations

import sys

import pytest

from ignite_ipu.cli import main


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


def test_the_scripts_exit_code_is_the_commands(script):
    with pytest.raises(SystemExit) as ended:
        main(["run", script("import sys; sys.exit(5)")])
    assert ended.value.code == 5


def test_an_exception_of_the_script_is_shown_from_the_script_on(script, capsys):
    assert main(["run", script("def fail():\n    raise KeyError('x')\nfail()\n")]) == 1
    shown = capsys.readouterr().err
    assert shown.index("Traceback") < shown.index("train.py") and "runpy" not in shown
    assert "bug in ignite-ipu" not in shown


def test_a_refusal_is_one_line_and_exit_code_2(script, capsys):
    path = script("import torch\ntorch.cuda.memory_allocated()\n")
    assert main(["run", path]) == 2
    shown = capsys.readouterr().err
    assert f"{path}:2: torch.cuda.memory_allocated() cannot be mapped" in shown and "Traceback" not in shown


def test_python_s_arguments_are_put_back(script):
    before = list(sys.argv), list(sys.path)
    main(["run", script("import sys; sys.argv.append('x'); sys.path.append('y')")])
    assert (list(sys.argv), list(sys.path)) == before
