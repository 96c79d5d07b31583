"""Outcomes of the promises, as a table for people and as a dictionary to attach to a report."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Sequence

from ignite_ipu.cli.environment import report as environment_report
from ignite_ipu.cli.terminal import Line
from ignite_ipu.selftest.devices import describe
from ignite_ipu.selftest.promise import Promise

__all__ = ["FAILED", "OK", "SKIPPED", "Outcome", "closing_lines", "content", "machine", "row"]

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
_STYLES = {OK: "green", FAILED: "bold red", SKIPPED: "yellow"}
_FORMAT = 1


@dataclasses.dataclass
class Outcome:
    """Outcome of one promise.

    Attributes:
        promise: The promise.
        result: "ok", "failed" or "skipped".
        reason: Why it failed or was skipped, in one line; empty if it is ok.
        traceback: That of a failure; empty otherwise.
        seconds: How long the program took.
        messages: What was logged and warned of meanwhile.
    """

    promise: Promise
    result: str
    reason: str = ""
    traceback: str = ""
    seconds: float = 0.0
    messages: List[str] = dataclasses.field(default_factory=list)


def row(outcome: Outcome, width: int) -> Line:
    """Return the table's row for one outcome; `width` is that of the longest name."""
    parts = [
        (f"{outcome.result:<8}", _STYLES[outcome.result]),
        (f"{outcome.promise.name:<{width}} {outcome.seconds:>6.1f} s", ""),
    ]
    if outcome.reason:
        parts.append((f"  {outcome.reason}", ""))
    return Line(parts, 8)


def closing_lines(outcomes: Sequence[Outcome], seconds: float) -> List[Line]:
    """Return what stands under the table: the promises that are broken, and how many there are of each result."""
    lines = []
    for outcome in outcomes:
        if outcome.result == FAILED:
            lines.append(Line([("", "")]))
            lines.append(Line([(outcome.promise.name, "bold red"), (f"  {outcome.promise.text}", "")], 2))
            lines.append(Line([(f"  docs/{outcome.promise.page}", "dim")]))
            lines.append(Line([(f"  {outcome.reason}", "")], 2))
    counted = ", ".join(f"{number} {result}" for result, number in _counts(outcomes).items() if number)
    lines.append(Line([("", "")]))
    lines.append(Line([(f"{counted or 'nothing to do'} in {seconds:.0f} s, on {_device_in_words()}", "bold")]))
    return lines


def machine() -> Dict[str, Any]:
    """Return what the programs run on: versions, backend and devices."""
    return {"device": describe(), "environment": environment_report()}


def content(outcomes: Sequence[Outcome], seconds: float, found: Dict[str, Any]) -> Dict[str, Any]:
    """Return all of it as JSON knows it.

    Args:
        outcomes: What came of the promises so far.
        seconds: How long it took.
        found: What `machine()` has found.
    """
    return {
        "format": _FORMAT,
        "results": _counts(outcomes),
        "seconds": round(seconds, 1),
        **found,
        "promises": [_entry(outcome) for outcome in outcomes],
    }


def _entry(outcome: Outcome) -> Dict[str, Any]:
    promise = outcome.promise
    return {
        "name": promise.name,
        "promise": promise.text,
        "page": f"docs/{promise.page}",
        "result": outcome.result,
        "reason": outcome.reason,
        "seconds": round(outcome.seconds, 2),
        "traceback": outcome.traceback,
        "messages": outcome.messages,
    }


def _counts(outcomes: Sequence[Outcome]) -> Dict[str, int]:
    results = [outcome.result for outcome in outcomes]
    return {result: results.count(result) for result in (OK, FAILED, SKIPPED)}


def _device_in_words() -> str:
    device = describe()
    return f"{device['backend']} (PopTorch {device['poptorch']}, IPUs: {device['ipus']})"
