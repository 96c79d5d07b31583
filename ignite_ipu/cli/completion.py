"""Shell completion, generated from the command line's own parsers: `eval "$(ignite-ipu completion bash)"`."""

from __future__ import annotations

import argparse
import shlex
from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple

from ignite_ipu.cli.command import COMMANDS, CommandParser, build_parser
from ignite_ipu.errors import UserError

PROGRAM = "ignite-ipu"


class Option(NamedTuple):
    """One option: its spellings, its help, and the values that may follow it."""

    flags: Tuple[str, ...]
    help: str
    takes_value: bool
    choices: Tuple[str, ...]


class Syntax(NamedTuple):
    """What may follow a command's name: options, words where the parser names the possible ones, and else files."""

    help: str
    options: Tuple[Option, ...]
    words: Tuple[str, ...]
    files: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ignite-ipu completion`."""
    parser.add_argument("shell", choices=sorted(_SHELLS), help="the shell to complete in")
    parser.epilog = (
        f'In the start-up file of bash: eval "$({PROGRAM} completion bash)"; of zsh, after compinit: '
        f'eval "$({PROGRAM} completion zsh)"; for fish, once: '
        f"{PROGRAM} completion fish > ~/.config/fish/completions/{PROGRAM}.fish"
    )


def main(args: argparse.Namespace) -> int:
    """Print the script."""
    print(script(args.shell), end="")
    return 0


def script(shell: str) -> str:
    """Return the completion script of `shell`: "bash", "fish" or "zsh"."""
    return _SHELLS[shell](_syntax(build_parser(), ""), _commands())


def _commands() -> Dict[str, Syntax]:
    commands = {}
    for name, command in COMMANDS.items():
        parser = CommandParser(prog=f"{PROGRAM} {name}")
        parser.command = command
        try:
            parser.load()
        except UserError:
            # An optional dependency is not installed: the command's name completes, its options cannot be known.
            parser.command = None
        commands[name] = _syntax(parser, command.help)
    return commands


def _syntax(parser: argparse.ArgumentParser, help_text: str) -> Syntax:
    options: List[Option] = []
    words: List[str] = []
    files = False
    formatter = argparse.HelpFormatter(parser.prog)
    # argparse offers no public way to list what was added; these two private names are as old as argparse.
    for action in parser._actions:
        choices = tuple(str(choice) for choice in action.choices or ())
        if action.help == argparse.SUPPRESS:
            continue
        if action.option_strings:
            text = formatter._expand_help(action) if action.help else ""
            options.append(Option(tuple(action.option_strings), text, action.nargs != 0, choices))
        else:
            words.extend(choices)
            files = files or not choices
    return Syntax(help_text, tuple(options), tuple(words), files)


def _flags(syntax: Syntax) -> List[str]:
    return [flag for option in syntax.options for flag in option.flags]


def _bash(top: Syntax, commands: Dict[str, Syntax]) -> str:
    cases = []
    for name, syntax in commands.items():
        values = "".join(
            f"                {'|'.join(option.flags)}) {_bash_reply(option.choices, not option.choices)}; return ;;\n"
            for option in syntax.options
            if option.takes_value
        )
        by_option = f'            case "$previous" in\n{values}            esac\n' if values else ""
        words = [*_flags(syntax), *syntax.words]
        cases.append(f"        {name})\n{by_option}            {_bash_reply(words, syntax.files)} ;;\n")
    return (
        f"# bash completion for {PROGRAM}\n"
        "_ignite_ipu() {\n"
        '    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command="" i\n'
        "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
        '        case "${COMP_WORDS[i]}" in -*) ;; *) command=${COMP_WORDS[i]}; break ;; esac\n'
        "    done\n"
        "    COMPREPLY=()\n"
        '    case "$command" in\n'
        f'        "") {_bash_reply([*commands, *_flags(top)])} ;;\n' + "".join(cases) + "    esac\n"
        "}\n"
        f"complete -o filenames -F _ignite_ipu {PROGRAM}\n"
    )


def _bash_reply(words: Sequence[str], files: bool = False) -> str:
    return f'COMPREPLY=($(compgen {"-f " if files else ""}-W {shlex.quote(" ".join(words))} -- "$word"))'


def _zsh(top: Syntax, commands: Dict[str, Syntax]) -> str:
    names = " ".join(_zsh_quote(f"{name}:{syntax.help}") for name, syntax in commands.items())
    cases = []
    for name, syntax in commands.items():
        specs = [spec for option in syntax.options for spec in _zsh_specs(option)]
        if syntax.words:
            specs.append(_zsh_quote(f"*:word:({' '.join(syntax.words)})"))
        elif syntax.files:
            specs.append(_zsh_quote("*:file:_files"))
        cases.append(f"        {name}) _arguments {' '.join(specs)} ;;\n")
    top_specs = " ".join(spec for option in top.options for spec in _zsh_specs(option))
    return (
        f"#compdef {PROGRAM}\n"
        "_ignite_ipu() {\n"
        "    local state line\n"
        f"    _arguments -C {top_specs} '1:command:->command' '*::argument:->argument'\n"
        "    case $state in\n"
        f"        command) local -a names; names=({names}); _describe command names ;;\n"
        "        argument) case $line[1] in\n" + "".join(cases) + "        esac ;;\n"
        "    esac\n"
        "}\n"
        f"compdef _ignite_ipu {PROGRAM}\n"
    )


def _zsh_specs(option: Option) -> List[str]:
    text = option.help.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
    value = ""
    if option.takes_value:
        value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"
    return [_zsh_quote(f"{flag}[{text}]{value}") for flag in option.flags]


def _zsh_quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish(top: Syntax, commands: Dict[str, Syntax]) -> str:
    lines = [f"# fish completion for {PROGRAM}", f"complete -c {PROGRAM} -n __fish_use_subcommand -f"]
    lines += [_fish_option("__fish_use_subcommand", option) for option in top.options]
    for name, syntax in commands.items():
        seen = f"'__fish_seen_subcommand_from {name}'"
        lines.append(f"complete -c {PROGRAM} -n __fish_use_subcommand -f -a {name} -d {_fish_quote(syntax.help)}")
        lines += [_fish_option(seen, option) for option in syntax.options]
        if syntax.words:
            lines.append(f"complete -c {PROGRAM} -n {seen} -a {_fish_quote(' '.join(syntax.words))}")
        if not syntax.files:
            lines.append(f"complete -c {PROGRAM} -n {seen} -f")
    return "\n".join(lines) + "\n"


def _fish_option(condition: str, option: Option) -> str:
    flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
    value = ""
    if option.choices:
        value = f" -x -a {_fish_quote(' '.join(option.choices))}"
    elif option.takes_value:
        value = " -r"
    return f"complete -c {PROGRAM} -n {condition} {flags}{value} -d {_fish_quote(option.help)}"


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SHELLS: Dict[str, Callable[[Syntax, Dict[str, Syntax]], str]] = {"bash": _bash, "fish": _fish, "zsh": _zsh}
