"""`judge`: a program run on both sides, and what its two records say."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import io
import linecache
import logging
import random
import traceback
import types
import warnings
from typing import Any, Iterator, List, Optional, Tuple

import torch

from tests.accelerate_state import forget
from tests.differential.program import Program
from tests.differential.refusals import LEFT_OUT, REFUSALS
from tests.differential.rendering import render
from tests.ignite.side import differences

#: Relative and absolute, about what float32 loses in a few dozen updates in another order of sums.
TOLERANCE = 2e-4


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the two sides of a program say.

    Attributes:
        kind: "same", "refused" by the device by name, "left out" as known, "different", or "broken" when the program
            itself does not run natively.
        text: Why.
        error: Class and first words of the error that was raised.
    """

    kind: str
    text: str = ""
    error: str = ""

    def like(self, other: Verdict) -> bool:
        """Tell whether another program fails in the same way."""
        return (self.kind, self.error) == (other.kind, other.error)

    @property
    def fails(self) -> bool:
        """Whether somebody has to look at it."""
        return self.kind in ("different", "broken")


def judge(program: Program) -> Verdict:
    """Return how the program's native run and its run on the device compare."""
    for known in LEFT_OUT:
        if known.when(program):
            return Verdict("left out", known.reason)
    text = render(program)
    expected, error = run(text, device=False)
    if error is not None and program.loss == "detached":
        found, error = run(text, device=True)
        return Verdict("different", "natively it is an error") if error is None else Verdict("same")
    if error is not None:
        return Verdict("broken", f"natively: {_described(error)}", _begun(error))
    found, error = run(text, device=True)
    if error is not None:
        for refusal in REFUSALS:
            if refusal.covers(program, error):
                return Verdict("refused", refusal.reason)
        return Verdict("different", f"the device raises {_described(error)}", _begun(error))
    return compared(expected, found)


def compared(expected: List[Any], found: List[Any]) -> Verdict:
    """Return how two records compare."""
    for number, (one, other) in enumerate(zip(expected, found)):
        parted = differences(one, other, f"note {number} ({one[0]})", TOLERANCE)
        if parted:
            return Verdict("different", f"{parted[0]} (native first); {len(parted)} values of this note differ")
    if len(expected) != len(found):
        longer = max(expected, found, key=len)[min(len(expected), len(found))]
        return Verdict("different", f"{len(expected)} notes natively, {len(found)} on the device; then {longer!r:.200}")
    return Verdict("same")


def run(text: str, device: bool) -> Tuple[List[Any], Optional[Exception]]:
    """Return what a script notes on one side, and what it has raised."""
    record: List[Any] = []
    name = f"<differential {'device' if device else 'native'}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module = types.ModuleType("program")
    error: Optional[Exception] = None
    with _quiet():
        try:
            exec(compile(text, name, "exec"), module.__dict__)
            module.run(device, lambda *values: record.append(_kept(values)))
        except Exception as raised:
            error = raised
    if error is not None:
        traceback.clear_frames(error.__traceback__)
    return record, error


def _kept(value: Any) -> Any:
    """Return a copy of what is noted, without RMSprop's counts of steps, which are the trainer's for all layers."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key != "step" or "square_avg" not in value}
        return {key: _kept(item) for key, item in kept.items()}
    if isinstance(value, (list, tuple)):
        return [_kept(item) for item in value]
    return copy.deepcopy(value)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Let a program start as a process would, and leave nothing behind."""
    forget()
    random.seed(0)
    torch.manual_seed(0)
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        gc.collect()  # IPUs that a failed program held
        logging.disable(disabled)
        forget()


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _begun(error: Exception) -> str:
    return " ".join(_described(error).split()[:4])
