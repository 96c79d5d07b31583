"""`ignite-ipu run SCRIPT ARGS...` and `ignite-ipu run -m MODULE ARGS...`: run an unmodified GPU script on IPUs.

Exit codes: the script's own; 1 if it ends with an exception of its own; 2 if something in it cannot be mapped; 70 for a
failure of this package, such as an import that fails with the installed versions.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import traceback
from types import TracebackType
from typing import Optional

from ignite_ipu.errors import UserError
from ignite_ipu.program import arguments

CACHE_VARIABLE = "POPTORCH_CACHE_DIR"
"""Names the executable cache for every new `poptorch.Options`."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ignite-ipu run`."""
    parser.add_argument("--quiet", action="store_true", help="do not list the substitutions")
    parser.add_argument(
        "--cache-dir",
        metavar="DIR",
        help=f"directory of executables to write and read; {CACHE_VARIABLE} by default",
    )
    parser.add_argument(
        "-m", dest="module", action="store_true", help="SCRIPT is the name of a module, as of `python -m`"
    )
    parser.add_argument("script", metavar="SCRIPT", help="the Python script to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="the script's arguments")
    arguments.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Run the script; return its exit code."""
    # Not at the top: these take long to import, and `--help` and completion need only the arguments.
    from unittest import mock

    from ignite_ipu.running.patches import list_substitutions
    from ignite_ipu.running.script import run_module, run_script

    cached = {} if args.cache_dir is None else {CACHE_VARIABLE: args.cache_dir}
    run = run_module if args.module else run_script
    try:
        with mock.patch.dict(os.environ, cached), contextlib.nullcontext() if args.quiet else list_substitutions():
            config = arguments.given_settings(args)
            if config.said():
                logging.getLogger("ignite_ipu.running").info("%r", config)
            run(args.script, args.arguments, config=config)
    except UserError:
        raise
    except Exception as error:
        if _is_ours(error):
            raise
        traceback.print_exception(type(error), error, _from_the_script(error.__traceback__))
        return 1
    return 0


def _is_ours(error: BaseException) -> bool:
    """Return whether a failure is this package's own: a module of it does not import, or the script was not reached."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any(code.co_name == "<module>" and code.co_filename.startswith(_PACKAGE) for code in codes):
        return True
    return not isinstance(error, SyntaxError) and _from_the_script(error.__traceback__) is None


def _from_the_script(trace: Optional[TracebackType]) -> Optional[TracebackType]:
    """Leave out the frames between this command and the script: all of them, if Python could not read the script."""
    found = trace
    while found is not None:
        file = found.tb_frame.f_code.co_filename
        if not file.startswith((_PACKAGE, "<frozen")) and os.path.basename(file) != "runpy.py":
            return found
        found = found.tb_next
    return None
