"""`judge`: a program run on both sides, and what its two records say."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import io
import linecache
import logging
import math
import random
import re
import runpy
import tempfile
import traceback
import types
import unittest.mock
import warnings
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Tuple

import torch

from ignite_ipu.running import run_script
from tests.accelerate_state import forget
from tests.differential.program import Program
from tests.differential.refusals import LEFT_OUT, REFUSALS
from tests.differential.rendering import render
from tests.ignite.side import differences

#: Relative and absolute, about what float32 loses in a few dozen updates in another order of sums.
TOLERANCE = 2e-4
Note = Callable[..., None]
Execute = Callable[[str, bool, Note], None]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the two sides of a program say.

    Attributes:
        kind: "same", "refused" by the device by name, "left out" as known, "different", or "broken" when the program
            itself does not run natively.
        text: Why.
        error: Class and first words of the error that was raised, without lines of the script.
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
    execute = run_script_of if program.front == "run" else run_module_of
    expected, error = run(text, False, execute)
    if error is not None and program.loss == "detached":
        found, error = run(text, True, execute)
        return Verdict("different", "natively it is an error") if error is None else Verdict("same")
    if error is not None:
        return Verdict("broken", f"natively: {_described(error)}", _begun(error))
    if not _finite(expected):
        return Verdict("broken", "natively: numbers that are not finite", "not finite")
    found, error = run(text, True, execute)
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


def run(text: str, device: bool, execute: Execute) -> Tuple[List[Any], Optional[Exception]]:
    """Return what a script notes on one side, and what it has raised."""
    record: List[Any] = []
    error: Optional[Exception] = None
    with _quiet():
        try:
            execute(text, device, lambda *values: record.append(_kept(values)))
        except Exception as raised:
            error = raised
            traceback.clear_frames(raised.__traceback__)
            gc.collect()  # IPUs that the program held
    return record, error


def run_module_of(text: str, device: bool, note: Note) -> None:
    """Run a script that itself tells its sides apart."""
    name = f"<differential {'device' if device else 'native'}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module = types.ModuleType("program")
    exec(compile(text, name, "exec"), module.__dict__)
    module.run(device, note)


def run_script_of(text: str, device: bool, note: Note) -> None:
    """Run a script as `python` or `ignite-ipu run` does, and note what it prints."""

    def printed(*values: Any, sep: str = "") -> None:
        note(*values)

    with tempfile.TemporaryDirectory() as folder, unittest.mock.patch("builtins.print", printed):
        path = Path(folder, f"{'device' if device else 'native'}.py")
        path.write_text(text, encoding="utf-8")
        if device:
            run_script(str(path), ["device"])
        else:
            with unittest.mock.patch("sys.argv", [str(path), "native"]):
                runpy.run_path(str(path), run_name="__main__")


def _finite(value: Any) -> bool:
    """Tell whether there is no infinity, and nothing that is no number, in what was noted."""
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_finite, value))
    if isinstance(value, torch.Tensor):
        return not value.is_floating_point() or bool(value.isfinite().all())
    return not isinstance(value, float) or math.isfinite(value)


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
        logging.disable(disabled)
        forget()


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _begun(error: Exception) -> str:
    return " ".join(re.sub(r"(\S+\.py|<\w+ \w+>):\d+:?", "", _described(error)).split()[:8])
