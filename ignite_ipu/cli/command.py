"""The `ignite-ipu` command: finds the subcommand, runs it, and turns errors into an exit code.

Exit codes:
    0 done, without complaints
    1 done, with findings or differences
    2    the user's error: wrong arguments, a file that is not there; one line names it, `--debug` adds the traceback
    70   a bug of ours, with its traceback
    130  interrupted from the keyboard
    141 the reader of the output stopped reading
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import sys
import traceback
from typing import Any, Dict, Iterator, NamedTuple, NoReturn, Optional, Sequence, cast

import ignite_ipu
from ignite_ipu.cli.terminal import use_colour
from ignite_ipu.errors import MissingLibraryError, UserError, nearest

EXIT_DONE = 0
EXIT_FINDINGS = 1
EXIT_USER_ERROR = 2
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class Command(NamedTuple):
    """Place of a subcommand: a module that offers `add_arguments(parser)` and `main(args) -> int`, imported when used.

    `help` is shown by `ignite-ipu --help`; `extra` names the optional libraries, as in `pip install
    'ignite-ipu[extra]'`.
    """

    module: str
    help: str
    extra: Optional[str] = None


# Help texts stand here, so that `ignite-ipu --help` imports no subcommand.
COMMANDS: Dict[str, Command] = {
    "env": Command("ignite_ipu.cli.environment", "print the content of a bug report: versions, SDK, backend, devices"),
    "check": Command("ignite_ipu.migration.commands.check", "read code and report problems on an IPU"),
    "migrate": Command(
        "ignite_ipu.migration.commands.migrate",
        "rewrite GPU code for IPUs, leaving unclear code alone",
        extra="migrate",
    ),
    "selftest": Command(
        "ignite_ipu.selftest.command", "check the promises of the documentation on this machine's IPUs"
    ),
    "run": Command("ignite_ipu.running.command", "run an unmodified GPU script on IPUs"),
    "warm": Command("ignite_ipu.running.warm", "compile the programs of a script into the executable cache"),
    "config": Command("ignite_ipu.program.questions", "ask for the settings of runs on IPUs, and write them to a file"),
    "parity": Command("ignite_ipu.parity.command", "compare a script, or a model, on the device with the host"),
    "plan": Command("ignite_ipu.running.planning", "plan a model over several IPUs and estimate time and memory"),
    "cache": Command("ignite_ipu.cli.cache", "list, verify or prune a directory of cached executables"),
    "launch": Command("ignite_ipu.cli.launch", "run a program in several processes, each with its own IPUs"),
    "completion": Command("ignite_ipu.cli.completion", "print the completion script of a shell"),
}


class CommandParser(argparse.ArgumentParser):
    """A subcommand's parser; it imports the subcommand's module when its arguments are first needed.

    Attributes:
        passed_on: Name of the argument that gets all that follows `--`; argparse gives it to no argument after options.
    """

    command: Optional[Command] = None
    passed_on: Optional[str] = None
    _loaded = False

    def load(self) -> None:
        """Add the subcommand's arguments, once; an optional dependency that is not installed is a `UserError`."""
        if self.command is None or self._loaded:
            return
        with _missing_named(self.command):
            module: Any = importlib.import_module(self.command.module)
        module.add_arguments(self)
        self.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks of errors")
        self.set_defaults(_main=module.main)
        self._loaded = True

    def error(self, message: str) -> NoReturn:
        """Print the error with the nearest known name, and exit."""
        wrong = re.search(r"invalid choice: '(.+?)' |unrecognized arguments: (--[\w-]+)", f"{message} ")
        if wrong:
            known = [name for parser in self._reached() for name in parser._names(option=wrong[1] is None)]
            near = nearest(wrong[1] or wrong[2], known)
            message += f". Did you mean {near!r}?" if near else ""
        super().error(message)

    def _reached(self) -> Iterator[CommandParser]:
        """Yield this parser and those of the subcommand that was chosen."""
        yield self
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from (parser for parser in action.choices.values() if parser._loaded)

    def _names(self, option: bool) -> Iterator[str]:
        for action in self._actions:
            yield from action.option_strings if option else map(str, action.choices or ())

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like any parser, after loading; argparse enters here for the one subcommand that was chosen."""
        self.load()
        given = sys.argv[1:] if args is None else list(args)
        if self.passed_on is None or "--" not in given:
            return super().parse_known_args(given, namespace)
        place = given.index("--")
        found, rest = super().parse_known_args(given[:place], namespace)
        setattr(found, self.passed_on, given[place + 1 :])
        return found, rest


def build_parser() -> CommandParser:
    """Return the parser of the whole command line, with subcommands not loaded yet."""
    parser = CommandParser(
        prog="ignite-ipu",
        description="pytorch-ignite and accelerate code on Graphcore IPUs.",
        epilog="Exit codes: 0 done; 1 done, with findings; 2 wrong arguments or input; 70 a bug; 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"ignite-ipu {ignite_ipu.__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    subparsers = parser.add_subparsers(dest="_command", metavar="COMMAND", required=True, parser_class=CommandParser)
    for name, command in COMMANDS.items():
        description = f"{command.help[0].upper()}{command.help[1:]}."
        subparsers.add_parser(name, help=command.help, description=description).command = command
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command line, `sys.argv`'s by default, and return the exit code; argparse itself raises `SystemExit`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        args = build_parser().parse_args(arguments)
        debug = args.debug
        with _missing_named(COMMANDS[args._command]):
            code = cast(int, args._main(args))
        sys.stdout.flush()
        return code
    except UserError as error:
        if debug:
            traceback.print_exc()
        _complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        if debug:
            traceback.print_exc()
        _complain("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more as it exits, and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception:
        traceback.print_exc()
        _complain("this is a bug in ignite-ipu; please report it with the output of `ignite-ipu env`")
        return EXIT_BUG


def _complain(message: str) -> None:
    label = "\033[1;31merror:\033[0m" if use_colour(sys.stderr) else "error:"
    print(f"ignite-ipu: {label} {message}", file=sys.stderr)


@contextlib.contextmanager
def _missing_named(command: Command) -> Iterator[None]:
    """Return a message with the optional dependency to install, if one of the command's cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if command.extra is None or missing.split(".")[0] == "ignite_ipu":
            raise
        name = next((name for name, each in COMMANDS.items() if each is command), command.module)
        raise MissingLibraryError(f"`ignite-ipu {name}`", missing, command.extra) from error
