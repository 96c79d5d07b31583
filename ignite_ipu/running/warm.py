"""`ignite-ipu warm SCRIPT ARGS...`: compile the programs of a script into the executable cache, without IPUs.

The script is rehearsed: programs are compiled for remote IPUs, and not run: the host computes the results of calls.
Exit codes: those of `ignite-ipu run`; 1, too, when nothing was compiled.
"""

from __future__ import annotations

import argparse
import os

from ignite_ipu import backend
from ignite_ipu.errors import UserError
from ignite_ipu.running import command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ignite-ipu warm`."""
    parser.add_argument(
        "--calls",
        type=int,
        metavar="N",
        help="end the script when N device calls in a row needed no compilation; by default it runs to its end",
    )
    parser.add_argument("--saves", action="store_true", help="let the script write its untrained weights and go on")
    command.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Rehearse the script; return its exit code."""
    # Not at the top: these import torch, and `--help` and completion need only the arguments.
    from ignite_ipu.running.program import module_program, script_program, started, uses_poptorch
    from ignite_ipu.running.rehearsal import RehearsalEnd, rehearsed

    if args.calls is not None and args.calls < 1:
        raise UserError(f"--calls {args.calls}: it is how many device calls may need nothing compiled, at least 1")
    directory = args.cache_dir or os.environ.get(command.CACHE_VARIABLE)
    if not directory:
        raise UserError(f"name a directory for the executables: --cache-dir DIR, or {command.CACHE_VARIABLE}")
    if backend.choice() == "native":
        raise UserError(f"{backend.VARIABLE}=native runs the script without IPUs, so there is nothing to compile")
    with started("-m" if args.module else args.script, args.arguments, os.getcwd()):
        program = module_program(args.script) if args.module else script_program(args.script)
    if uses_poptorch(program):
        raise UserError(
            f"{args.script} uses PopTorch itself: call the compileAndExport() of its executors, with options that have "
            "useOfflineIpuTarget()"
        )
    code, end = 0, "the script has come to its end"
    with rehearsed(args.calls, args.saves) as rehearsal:
        try:
            code = command.main(args)
        except RehearsalEnd as ended:
            end = f"{ended}: code after it is not compiled"
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    count = len(rehearsal.compiled)
    print(f"{count} {'program' if count == 1 else 'programs'} compiled into {directory}; {end}.")
    return code or int(not count)
