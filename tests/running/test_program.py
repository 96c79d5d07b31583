"""A program is found as Python finds it, and started with the same arguments and paths."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ignite_ipu.cli.command import main
from ignite_ipu.errors import UserError
from ignite_ipu.running.program import Main, module_program, script_program

SHOW = """
import sys
from .. import beside
print(__name__, __package__, __spec__.name, __spec__.origin == __file__, sys.argv, sys.path[0], beside.__name__)
print(sys.modules["__main__"].__dict__ is globals())
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Make the package `outer_package` with `inner` in it, and start in its directory."""
    inner = tmp_path / "outer_package" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "outer_package" / "__init__.py").write_text("import sys\nprint(__name__, sys.argv)\n")
    (tmp_path / "outer_package" / "beside.py").write_text("")
    for name in ("train", "__main__"):
        (inner / f"{name}.py").write_text(SHOW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "outer_package"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["outer_package.inner.train", "outer_package.inner"])
def test_a_module_is_given_what_python_gives_it(project, capsys, name):
    """The package without an __init__ around it, too."""
    arguments = ["-m", name, "--lr", "0.1", "-m", "--", "-h"]
    natively = subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert main(["run", *arguments]) == 0
    assert capsys.readouterr().out == natively


def test_what_its_packages_do_is_substituted_too(project, capsys):
    (project / "outer_package" / "__init__.py").write_text("import torch\nprint(torch.cuda.is_available())\n")
    assert main(["run", "--quiet", "-m", "outer_package.inner.train"]) == 0
    assert capsys.readouterr().out.startswith("True\n")


def test_its_own_files_lie_beside_the_outermost_package(project):
    inner = project / "outer_package" / "inner"
    program = module_program("outer_package.inner.train")
    assert program == Main(str(inner / "train.py"), str(project), "outer_package.inner.train")
    assert module_program("outer_package.inner").path == str(inner / "__main__.py")
    assert script_program(str(inner / "train.py")).folder == str(inner)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("outer_package.missing", "there is no module 'outer_package.missing' on Python's path, which begins with "),
        ("outer_package.inner.train.py", "name it without the suffix: -m outer_package.inner.train"),
        ("outer_package", "'outer_package' is a package without a __main__; name a module in it"),
        (".inner", "there is no module '.inner'"),
    ],
)
def test_modules_that_are_not_there(project, name, message):
    with pytest.raises(UserError, match=message):
        module_program(name)
