"""Shell completion, which shtab writes from the command line's own parsers: `eval "$(ignite-ipu completion bash)"`."""

from __future__ import annotations

import argparse

import shtab

from ignite_ipu.cli.command import CommandParser, build_parser
from ignite_ipu.errors import UserError

PROGRAM = "ignite-ipu"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ignite-ipu completion`."""
    parser.add_argument("shell", choices=("bash", "fish", "zsh"), help="the shell to complete in")
    parser.epilog = (
        f'In the start-up file of bash: eval "$({PROGRAM} completion bash)"; of zsh, after compinit: '
        f'eval "$({PROGRAM} completion zsh)"; for fish, once: '
        f"{PROGRAM} completion fish > ~/.config/fish/completions/{PROGRAM}.fish"
    )


def main(args: argparse.Namespace) -> int:
    """Print the script."""
    print(script(args.shell))
    return 0


def script(shell: str) -> str:
    """Return the completion script of `shell`: "bash", "fish" or "zsh"."""
    if shell not in shtab.SUPPORTED_SHELLS:
        raise UserError(f"shtab {shtab.__version__} does not know {shell}; 1.8, for Python 3.9 and later, does")
    parser = build_parser()
    _complete_files(parser)
    return shtab.complete(parser, shell)


def _complete_files(parser: CommandParser) -> None:
    """Offer files for each value that is none of a few choices, in subcommands, too."""
    try:
        parser.load()
    except UserError:
        # An optional dependency is not installed: the command's name completes, its options cannot be known.
        parser.command = None
    # argparse offers no public list of its actions; this private name is as old as argparse.
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                _complete_files(subparser)
        elif action.nargs != 0 and not action.choices and action.help != argparse.SUPPRESS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
