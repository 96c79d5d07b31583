"""`ignite-ipu selftest`: checks the promises of the documentation on the IPUs, or the emulator, of this machine."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from ignite_ipu.checkpoints.atomic_files import whole_file
from ignite_ipu.cli.command import EXIT_DONE, EXIT_FINDINGS
from ignite_ipu.cli.terminal import Line, Progress, write_lines
from ignite_ipu.errors import BackendError, UserError, did_you_mean, nearest
from ignite_ipu.selftest.promises import Promise, every_promise
from ignite_ipu.selftest.report import FAILED, Outcome, available, closing_lines, content, machine, row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ignite-ipu selftest`."""
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        help="check these promises, or these groups of them, as --list names them (default: all)",
    )
    parser.add_argument("--list", action="store_true", help="list the promises and check none")
    parser.add_argument(
        "--format",
        choices=("table", "json"),
        default="table",
        help="what is written to standard output; JSON comes when all is done (default: %(default)s)",
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write the JSON into FILE, too, anew after every promise"
    )


def main(args: argparse.Namespace) -> int:
    """Check the promises; return 1 if one is broken, 0 otherwise."""
    # Here, so that shells complete the command's options without loading Ignite.
    from ignite_ipu.selftest import runner

    chosen = _chosen(every_promise(), args.only)
    width = max(len(promise.name) for promise in chosen)
    if args.list:
        write_lines([Line([(f"{each.name:<{width}}  {each.text}", "")], width + 2) for each in chosen], sys.stdout)
        return EXIT_DONE
    try:
        ipus = available()
    except (BackendError, ValueError) as error:
        raise UserError(str(error)) from error
    progress = Progress("Checking", len(chosen))
    # Asked for once, and only if somebody reads it: it starts the SDK's own tools.
    found = machine() if args.report is not None or args.format == "json" else {}
    started = time.perf_counter()
    outcomes: List[Outcome] = []

    def report(running: Optional[Promise] = None) -> Dict[str, Any]:
        so_far = content(outcomes, time.perf_counter() - started, found)
        return so_far if running is None else {**so_far, "running": running.name}

    with contextlib.ExitStack() as stack:
        # The garbage collections after each program leave out what is in memory now, and so take no time. What somebody
        # else has frozen could not be had back.
        if not gc.get_freeze_count():
            gc.collect()
            gc.freeze()
            stack.callback(gc.unfreeze)
        for promise in chosen:
            progress.show(promise.name)
            # What takes the process down leaves behind which program was running.
            _write(args.report, report(running=promise))
            outcomes.append(runner.run(promise, ipus))
            progress.clear()
            if args.format == "table":
                write_lines([row(outcomes[-1], width)], sys.stdout)
                sys.stdout.flush()
    progress.close()
    if args.format == "json":
        print(json.dumps(report(), indent=2))
    else:
        write_lines(closing_lines(outcomes, time.perf_counter() - started), sys.stdout)
    _write(args.report, report())
    return EXIT_FINDINGS if any(outcome.result == FAILED for outcome in outcomes) else EXIT_DONE


def _chosen(promises: Sequence[Promise], names: Optional[Sequence[str]]) -> List[Promise]:
    if names is None:
        return list(promises)
    groups = {promise.group for promise in promises}
    known = groups | {promise.name for promise in promises}
    for name in names:
        if name not in known:
            near = did_you_mean(name, known if nearest(name, known) else groups)
            raise UserError(f"There is no promise or group {name!r}.{near} --list has all.")
    return [promise for promise in promises if promise.name in names or promise.group in names]


def _write(path: Optional[Path], report: Dict[str, Any]) -> None:
    if path is None:
        return
    try:
        with whole_file(path) as file:
            file.write(json.dumps(report, indent=2).encode())
    except OSError as error:
        raise UserError(f"The report cannot be written to {path}: {error.strerror}. Name another file.") from error
