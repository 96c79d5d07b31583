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

from ignite_ipu import backend
from ignite_ipu.checkpoints.atomic_files import whole_file
from ignite_ipu.cli.command import EXIT_DONE, EXIT_FINDINGS
from ignite_ipu.cli.environment import report as environment_report
from ignite_ipu.cli.terminal import Progress, TextLine, write_lines
from ignite_ipu.errors import BackendError, UserError, did_you_mean, nearest
from ignite_ipu.selftest.promises import FAILED, OK, SKIPPED, Promise, PromiseOutcome, available, every_promise

_STYLES = {OK: "green", FAILED: "bold red", SKIPPED: "yellow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ignite-ipu selftest`."""
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        help="check these promises, or these groups of --list (default: all)",
    )
    parser.add_argument("--list", action="store_true", help="list the promises and check none")
    parser.add_argument(
        "--format",
        choices=("table", "json"),
        default="table",
        help="format of standard output; JSON is printed at the end (default: %(default)s)",
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="also write the JSON into FILE, updated after every promise"
    )


def main(args: argparse.Namespace) -> int:
    """Check the promises; return 1 if one is broken, 0 otherwise."""
    # Here, so that shells complete the command's options without loading Ignite.
    from ignite_ipu.selftest import runner

    chosen = _chosen(every_promise(), args.only)
    width = max(len(promise.name) for promise in chosen)
    if args.list:
        write_lines([TextLine([(f"{each.name:<{width}}  {each.text}", "")], width + 2) for each in chosen], sys.stdout)
        return EXIT_DONE
    try:
        ipus = available()
    except (BackendError, ValueError) as error:
        raise UserError(str(error)) from error
    progress = Progress("Checking", len(chosen))
    # Computed once, and only on a read: it starts the SDK's own tools.
    read = args.report is not None or args.format == "json"
    machine = {"device": _device(), "environment": environment_report()} if read else {}
    started = time.perf_counter()
    outcomes: List[PromiseOutcome] = []

    def report(running: Optional[Promise] = None) -> Dict[str, Any]:
        so_far = _content(outcomes, time.perf_counter() - started, machine)
        return so_far if running is None else {**so_far, "running": running.name}

    with contextlib.ExitStack() as stack:
        # The garbage collections after each program leave out the present objects, and so take no time. Objects that
        # other code has frozen could not be unfrozen separately.
        if not gc.get_freeze_count():
            gc.collect()
            gc.freeze()
            stack.callback(gc.unfreeze)
        for promise in chosen:
            progress.show(promise.name)
            # If the process dies, the file has the running program.
            _write(args.report, report(running=promise))
            outcomes.append(runner.run(promise, ipus))
            progress.clear()
            if args.format == "table":
                write_lines([_row(outcomes[-1], width)], sys.stdout)
                sys.stdout.flush()
    progress.close()
    if args.format == "json":
        print(json.dumps(report(), indent=2))
    else:
        write_lines(_closing_lines(outcomes, time.perf_counter() - started), sys.stdout)
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


def _row(outcome: PromiseOutcome, width: int) -> TextLine:
    """Return the table's row for one outcome; `width` is that of the longest name."""
    reason = f"  {outcome.reason}" if outcome.reason else ""
    text = f"{outcome.promise.name:<{width}} {outcome.seconds:>6.1f} s{reason}"
    return TextLine([(f"{outcome.result:<8}", _STYLES[outcome.result]), (text, "")], 8)


def _closing_lines(outcomes: Sequence[PromiseOutcome], seconds: float) -> List[TextLine]:
    """Return the text under the table: the broken promises, and the number of each result."""
    lines = []
    for outcome in outcomes:
        if outcome.result == FAILED:
            lines += [
                TextLine([("", "")]),
                TextLine([(outcome.promise.name, "bold red"), (f"  {outcome.promise.text}", "")], 2),
                TextLine([(f"  docs/{outcome.promise.page}", "dim")]),
                TextLine([(f"  {outcome.reason}", "")], 2),
            ]
    device = _device()
    counted = ", ".join(f"{number} {result}" for result, number in _counts(outcomes).items() if number)
    where = f"{device['backend']} (PopTorch {device['poptorch']}, IPUs: {device['ipus']})"
    return [
        *lines,
        TextLine([("", "")]),
        TextLine([(f"{counted or 'nothing to do'} in {seconds:.0f} s, on {where}", "bold")]),
    ]


def _content(outcomes: Sequence[PromiseOutcome], seconds: float, machine: Dict[str, Any]) -> Dict[str, Any]:
    """Return the report as plain data, with versions, backend and devices."""
    entries = [
        {
            "name": each.promise.name,
            "promise": each.promise.text,
            "page": f"docs/{each.promise.page}",
            "result": each.result,
            "reason": each.reason,
            "seconds": round(each.seconds, 2),
            "traceback": each.traceback,
            "messages": each.messages,
        }
        for each in outcomes
    ]
    return {"format": 1, "results": _counts(outcomes), "seconds": round(seconds, 1), **machine, "promises": entries}


def _device() -> Dict[str, Any]:
    poptorch = backend.poptorch()
    return {
        "backend": backend.name(),
        "poptorch": poptorch.__version__,
        "ipus": available(),
        "hardware version": poptorch.ipuHardwareVersion() if poptorch.ipuHardwareIsAvailable() else None,
    }


def _counts(outcomes: Sequence[PromiseOutcome]) -> Dict[str, int]:
    results = [outcome.result for outcome in outcomes]
    return {result: results.count(result) for result in (OK, FAILED, SKIPPED)}
