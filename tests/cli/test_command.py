"""The `ignite-ipu` command: its subcommands, its exit codes, and its messages for errors."""

from __future__ import annotations

import argparse
import io
import resource
import subprocess
import sys
import types
from importlib import import_module

import pytest

from ignite_ipu.cli import command as cli
from ignite_ipu.cli.command import COMMANDS, Command, main
from ignite_ipu.cli.terminal import use_colour
from ignite_ipu.errors import UserError


@pytest.fixture
def command(monkeypatch):
    """Register a subcommand `try` that runs the test's function."""

    def register(run, extra=None):
        module = types.ModuleType("try_command")
        module.add_arguments = lambda parser: parser.add_argument("words", nargs="*")
        module.main = run
        monkeypatch.setitem(sys.modules, "try_command", module)
        monkeypatch.setitem(COMMANDS, "try", Command("try_command", "try something", extra))

    return register


def _raise(error):
    raise error


def test_every_advertised_command_exists():
    for name, command in COMMANDS.items():
        module = import_module(command.module)
        parser = argparse.ArgumentParser(prog=name)
        assert module.add_arguments(parser) is None
        assert callable(module.main)
        assert parser.description is None or parser.description.endswith("."), parser.description


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert name in shown
        assert command.help.split()[0] in shown


def test_help_imports_neither_torch_nor_a_command():
    code = (
        "import sys\nfrom ignite_ipu.cli.command import COMMANDS, main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "loaded = {'torch', *(command.module for command in COMMANDS.values())} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)


def test_help_of_every_command_and_completion_import_no_torch():
    """Nor anything else that takes long, so that they come within 0.2 seconds of Python's own start."""
    code = (
        "import sys\nfrom ignite_ipu.cli.command import COMMANDS, main\n"
        "for words in ([], *([name] for name in COMMANDS)):\n"
        "    try: main([*words, '--help'])\n    except SystemExit: pass\n"
        "main(['completion', 'bash'])\n"
        "slow = {'torch', 'ignite', 'numpy', 'libcst', 'rich', 'yaml', 'matplotlib', 'accelerate'} & set(sys.modules)\n"
        "assert not slow, slow"
    )
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["completion", "bash"]])
def test_the_start_takes_little_more_than_pythons(words):
    """Processor time, the least of a few runs: a busy machine makes all of them slower."""
    starts = ["-c", "pass"], ["-m", "ignite_ipu", *words]
    bare, ours = (min(_processor_time(*each) for _ in range(5)) for each in starts)
    assert ours - bare < 0.3


def _processor_time(*words):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_command_gets_its_arguments_and_gives_the_exit_code(command):
    command(lambda args: len(args.words))
    assert main(["try", "a", "b", "c"]) == 3


def test_a_user_error_is_one_line_and_exits_with_2(command, capsys):
    command(lambda args: _raise(UserError("no such file: x.py; give an existing path")))
    assert main(["try"]) == cli.EXIT_USER_ERROR == 2
    assert capsys.readouterr().err == "ignite-ipu: error: no such file: x.py; give an existing path\n"


@pytest.mark.parametrize("arguments", [["--debug", "try"], ["try", "--debug"]])
def test_debug_adds_the_traceback_wherever_it_stands(arguments, command, capsys):
    command(lambda args: _raise(UserError("no such file: x.py")))
    assert main(arguments) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_user_error_may_choose_its_exit_code(command):
    command(lambda args: _raise(UserError("cancelled", exit_code=75)))
    assert main(["try"]) == 75


def test_a_bug_shows_its_traceback_and_is_not_mistaken_for_findings(command, capsys):
    command(lambda args: _raise(ZeroDivisionError("of ours")))
    assert main(["try"]) == cli.EXIT_BUG
    shown = capsys.readouterr().err
    assert "ZeroDivisionError: of ours" in shown
    assert "ignite-ipu env" in shown


def test_an_interrupt_is_no_traceback(command, capsys):
    command(lambda args: _raise(KeyboardInterrupt()))
    assert main(["try"]) == 130
    assert capsys.readouterr().err == "ignite-ipu: error: interrupted\n"


def test_a_reader_that_stops_reading_is_no_error():
    """As in `ignite-ipu env | head -1`."""
    code = (
        "import sys\nfrom ignite_ipu.cli import environment, main\n"
        "environment.render = lambda report: 'line\\n' * 1_000_000\n"
        "sys.exit(main(['env']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        complaints = process.stderr.read()
    assert b"Traceback" not in complaints
    assert b"BrokenPipe" not in complaints
    assert process.returncode == cli.EXIT_BROKEN_PIPE


@pytest.mark.parametrize("arguments", [[], ["chek"], ["env", "--jsn"], ["--nonsense"]])
def test_wrong_arguments_exit_with_2_and_show_the_usage(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert capsys.readouterr().err.startswith("usage: ignite-ipu")


def test_a_missing_optional_dependency_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(COMMANDS, "try", Command("module_nobody_has.command", "try something", "migrate"))
    assert main(["try"]) == 2
    assert capsys.readouterr().err.endswith(
        "`ignite-ipu try` needs module_nobody_has, which is not installed: pip install 'ignite-ipu[migrate]'\n"
    )


def test_help_of_a_command_needs_none_of_its_dependencies(monkeypatch, capsys):
    """Here of `migrate`, without libcst; the command itself names the missing package."""
    for name in [name for name in sys.modules if name.startswith(("libcst", "ignite_ipu.migration"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "libcst", None)
    with pytest.raises(SystemExit) as exit_:
        main(["migrate", "--help"])
    assert exit_.value.code == 0 and "--in-place" in capsys.readouterr().out
    assert main(["migrate", __file__]) == 2
    assert "`ignite-ipu migrate` needs libcst" in capsys.readouterr().err


def test_a_module_of_ours_that_is_missing_is_a_bug_not_a_dependency(monkeypatch, capsys):
    monkeypatch.setitem(COMMANDS, "try", Command("ignite_ipu.nowhere", "try something", "migrate"))
    assert main(["try"]) == cli.EXIT_BUG
    assert "No module named 'ignite_ipu.nowhere'" in capsys.readouterr().err


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "coloured"),
    [
        (_Terminal(), {}, True),
        (_Terminal(), {"NO_COLOR": "1"}, False),
        (_Terminal(), {"NO_COLOR": ""}, True),
        (_Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (io.StringIO(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_is_for_terminals_unless_the_environment_says_otherwise(stream, environment, coloured, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert use_colour(stream) is coloured


def test_python_dash_m_is_the_same_command():
    run = subprocess.run(
        [sys.executable, "-m", "ignite_ipu", "--version"], stdout=subprocess.PIPE, check=True, text=True
    )
    assert run.stdout.startswith("ignite-ipu ")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["chek", "."], "check"),
        (["migarte", "."], "migrate"),
        (["run", "--quite", "train.py"], "--quiet"),
        (["launch", "--instances", "2", "--launcher", "poprum", "train.py"], "poprun"),
    ],
)
def test_a_misspelt_word_names_the_one_that_may_be_meant(words, meant, capsys):
    """Commands, options and their values."""
    with pytest.raises(SystemExit):
        main(words)
    assert f"Did you mean '{meant}'?" in capsys.readouterr().err
