"""Completion scripts offer the words that the parsers accept."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest
import shtab

from ignite_ipu.cli.command import COMMANDS, Command
from ignite_ipu.cli.completion import script
from ignite_ipu.errors import UserError


@pytest.fixture(autouse=True)
def _example_command(monkeypatch):
    """A subcommand with everything that completes: options with and without values, choices, paths."""

    def add_arguments(parser):
        parser.add_argument("path", nargs="+")
        parser.add_argument("--format", choices=["json", "sarif"], default="json", help="it's [%(default)s] by default")
        parser.add_argument("-o", "--output", help="where to: a path")
        parser.add_argument("--hidden", help="==SUPPRESS==")

    module = types.ModuleType("example_command")
    module.add_arguments = add_arguments
    module.main = lambda args: 0
    monkeypatch.setitem(sys.modules, "example_command", module)
    monkeypatch.setitem(COMMANDS, "example", Command("example_command", "show an example"))
    monkeypatch.setitem(COMMANDS, "absent", Command("module_nobody_has", "need a dependency", "migrate"))


def _complete(*words, cwd):
    """Return the completions of bash for the last of `words`."""
    ask = (
        f"{script('bash')}\nCOMP_WORDS=({' '.join(repr(word) for word in words)})\n"
        "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
        '_shtab_ignite_ipu ignite-ipu "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"\n'
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    run = subprocess.run(["bash", "--norc", "-c", ask], stdout=subprocess.PIPE, check=True, text=True, cwd=cwd)
    return run.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ex"], ["example"]),
        (["ab"], ["absent"]),
        (["--ver"], ["--version"]),
        (["--debug", "en"], ["env"]),
        (["env", "--j"], ["--json"]),
        (["completion", "z"], ["zsh"]),
        (["example", "--f"], ["--format"]),
        (["example", "--format", ""], ["json", "sarif"]),
        (["example", "--format", "s"], ["sarif"]),
        (["example", "-o", "scr"], ["script.py"]),
        (["example", "scr"], ["script.py"]),
        (["example", "--hid"], []),
        (["env", "scr"], []),
    ],
)
def test_bash_offers(words, offered, tmp_path):
    (tmp_path / "script.py").touch()
    assert _complete("ignite-ipu", *words, cwd=tmp_path) == offered


@pytest.mark.parametrize("shell", sorted({"bash", "fish", "zsh"}.intersection(shtab.SUPPORTED_SHELLS)))
def test_every_shell_knows_every_command_and_option(shell):
    text = script(shell)
    for word in [*COMMANDS, "json", "format", "output", "sarif"]:
        assert word in text
    assert "hidden" not in text


def test_a_shell_that_an_old_shtab_does_not_know_is_the_users_error(monkeypatch):
    monkeypatch.setattr(shtab, "SUPPORTED_SHELLS", ["bash", "zsh"])
    with pytest.raises(UserError, match=r"does not know fish; 1\.8, for Python 3.9 and later, does"):
        script("fish")
