"""Outcomes of the promises, as a table for people and as a dictionary to attach to a report."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Sequence

from ignite_ipu import backend
from ignite_ipu.cli.environment import report as environment_report
from ignite_ipu.cli.terminal import Line
from ignite_ipu.program.options import is_simulated
from ignite_ipu.selftest.promises import Promise

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
_STYLES = {OK: "green", FAILED: "bold red", SKIPPED: "yellow"}
# PopTorch gives out devices of so many IPUs to one process.
_SIZES = (64, 32, 16, 8, 4, 2, 1)


@dataclasses.dataclass
class Outcome:
    """Outcome of one promise; the reason has one line, empty if it is ok.

    `messages` are what was logged and warned of meanwhile.
    """

    promise: Promise
    result: str = OK
    reason: str = ""
    traceback: str = ""
    seconds: float = 0.0
    messages: List[str] = dataclasses.field(default_factory=list)


def available() -> int:
    """Return the number of IPUs of the largest device that one program can have, 0 if there is none."""
    poptorch = backend.poptorch()
    if is_simulated(poptorch.Options()):
        return _SIZES[0]  # IPU models have any number
    return next((size for size in _SIZES if poptorch.ipuHardwareIsAvailable(size)), 0)


def row(outcome: Outcome, width: int) -> Line:
    """Return the table's row for one outcome; `width` is that of the longest name."""
    reason = f"  {outcome.reason}" if outcome.reason else ""
    text = f"{outcome.promise.name:<{width}} {outcome.seconds:>6.1f} s{reason}"
    return Line([(f"{outcome.result:<8}", _STYLES[outcome.result]), (text, "")], 8)


def closing_lines(outcomes: Sequence[Outcome], seconds: float) -> List[Line]:
    """Return what stands under the table: the promises that are broken, and how many there are of each result."""
    lines = []
    for outcome in outcomes:
        if outcome.result == FAILED:
            lines += [
                Line([("", "")]),
                Line([(outcome.promise.name, "bold red"), (f"  {outcome.promise.text}", "")], 2),
                Line([(f"  docs/{outcome.promise.page}", "dim")]),
                Line([(f"  {outcome.reason}", "")], 2),
            ]
    device = _device()
    counted = ", ".join(f"{number} {result}" for result, number in _counts(outcomes).items() if number)
    where = f"{device['backend']} (PopTorch {device['poptorch']}, IPUs: {device['ipus']})"
    return [*lines, Line([("", "")]), Line([(f"{counted or 'nothing to do'} in {seconds:.0f} s, on {where}", "bold")])]


def machine() -> Dict[str, Any]:
    """Return what the programs run on: versions, backend and devices."""
    return {"device": _device(), "environment": environment_report()}


def content(outcomes: Sequence[Outcome], seconds: float, found: Dict[str, Any]) -> Dict[str, Any]:
    """Return all of it as JSON knows it, with what `machine()` has found."""
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
    return {"format": 1, "results": _counts(outcomes), "seconds": round(seconds, 1), **found, "promises": entries}


def _device() -> Dict[str, Any]:
    poptorch = backend.poptorch()
    return {
        "backend": backend.name(),
        "poptorch": poptorch.__version__,
        "ipus": available(),
        "hardware version": poptorch.ipuHardwareVersion() if poptorch.ipuHardwareIsAvailable() else None,
    }


def _counts(outcomes: Sequence[Outcome]) -> Dict[str, int]:
    results = [outcome.result for outcome in outcomes]
    return {result: results.count(result) for result in (OK, FAILED, SKIPPED)}
