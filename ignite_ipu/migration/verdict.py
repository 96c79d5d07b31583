"""Verdict on a program: what `ignite-ipu run` makes of it, by its text."""

from __future__ import annotations

import enum
from typing import Iterable

from ignite_ipu.migration.analysis.library_loops import library_loops
from ignite_ipu.migration.findings import Finding, Outcome, Program, Severity

_ACCELERATORS = ("accelerate.Accelerator", "accelerate.accelerator.Accelerator", "ignite_ipu.IPUAccelerator")


class Verdict(str, enum.Enum):
    """Verdict on a file as a program of its own."""

    TRAINS = "trains it"
    TRAINS_ON_HOST = "trains it, with weight updates on the host"
    REFUSED = "refuses it"
    NOTHING = "has nothing to do"


def trains(program: Program) -> bool:
    """Return whether a file makes optimizers, trainers or training steps."""
    training = program.training
    if training.backwards or training.trainers or training.optimizer_calls or list(program.calls(*_ACCELERATORS)):
        return True
    return any(True for _ in library_loops(program, training))


def verdict(program: Program, findings: Iterable[Finding]) -> Verdict:
    """Return the verdict on a file, by all that rules find in it; notes refuse nothing."""
    if not trains(program):
        return Verdict.NOTHING
    outcomes = {finding.run for finding in findings if finding.severity is not Severity.NOTE}
    if Outcome.REFUSED in outcomes:
        return Verdict.REFUSED
    return Verdict.TRAINS_ON_HOST if Outcome.ON_HOST in outcomes else Verdict.TRAINS
