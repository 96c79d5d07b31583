"""`judge`: a program run on both sides, and the comparison of its two records."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import io
import linecache
import logging
import random
import re
import tempfile
import threading
import traceback
import types
import unittest.mock
import warnings
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Tuple

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ignite_ipu.parity.child import run_recorded
from ignite_ipu.parity.comparison import compare, single_entries
from ignite_ipu.parity.differences import Difference, ScriptParity
from ignite_ipu.parity.fingerprints import leaves
from ignite_ipu.parity.recorder import Entry, Recorder
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.running import run_script
from ignite_ipu.running.program import script_program, started
from tests.accelerate_state import forget
from tests.differential.program import SCRIPTS, Program
from tests.differential.refusals import LEFT_OUT, REFUSALS
from tests.differential.rendering import SEPARATOR, render

TOLERANCE = 1e-3
ROUNDING = 2.0**-23
"""Part of a tensor's largest gradient that rounding may change its gradients by."""
FAILING = ("different", "broken", "crash")
_ALL_UPDATES = 10**6


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict on the two sides of a program.

    Attributes:
        kind: "same", "refused" by the device by name, "left out" as known, "different", "broken" when the program
            itself does not run natively, or "crash" when the comparison raised an error.
        text: Why.
        error: Class and first words of the error that was raised, without lines of the script.
    """

    kind: str
    text: str = ""
    error: str = ""

    def like(self, other: Verdict) -> bool:
        """Return whether another program fails in the same way."""
        return (self.kind, self.error) == (other.kind, other.error)

    @property
    def fails(self) -> bool:
        """Whether it needs a closer look."""
        return self.kind in FAILING


def judge(program: Program) -> Verdict:
    """Return how the program's native run and its run on the device compare; an error of the comparison is a crash."""
    try:
        return _judged(program)
    except Exception as error:
        return Verdict("crash", traceback.format_exc(), _begun(error))


def _judged(program: Program) -> Verdict:
    for known in LEFT_OUT:
        if known.when(program):
            return Verdict("left out", known.reason)
    expected, error = run(program, device=False)
    if error is not None and program.loss == "detached":
        found, error = run(program, device=True)
        return Verdict("different", "natively it is an error") if error is None else Verdict("same")
    if error is not None:
        return Verdict("broken", f"natively: {_described(error)}", _begun(error))
    if not all(_finite(entry["value"]) for entry in single_entries(expected)):
        return Verdict("left out", "numbers that are not finite natively")
    found, error = run(program, device=True)
    if error is not None:
        for refusal in REFUSALS:
            if refusal.covers(program, error):
                return Verdict("refused", refusal.reason)
        return Verdict("different", f"the device raises {_described(error)}", _begun(error))
    first = parity_of(expected, found).first
    if first is not None and not first.remark and grows_from_rounding(program, expected, first):
        return Verdict("left out", "rounding grows beyond the tolerance natively, too")
    return compared(expected, found)


def grows_from_rounding(program: Program, expected: List[Entry], first: Difference) -> bool:
    """Return whether gradients rounded otherwise, in three ways, make half as large a difference on the host."""
    return any(_grows(program, expected, first, seed) for seed in range(3))


def _grows(program: Program, expected: List[Entry], first: Difference, seed: int) -> bool:
    def rounded(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            if parameter.grad is not None and not parameter.grad.is_sparse:
                noise = torch.empty_like(parameter.grad).uniform_(-1, 1, generator=generator)
                parameter.grad.add_(noise * parameter.grad.abs().max(), alpha=ROUNDING)

    generator = torch.Generator().manual_seed(seed)
    hook = register_optimizer_step_pre_hook(rounded)
    try:
        found, error = run(program, device=False)
    finally:
        hook.remove()
    apart = [each for each in parity_of(expected, found).differences if _place(each) == _place(first)]
    return error is None and any(each.size > first.size / 2 for each in apart)


def _place(difference: Difference) -> Tuple[Any, ...]:
    return difference.kind, difference.name, difference.update


def parity_of(expected: List[Entry], found: List[Entry]) -> ScriptParity:
    """Return how two records compare, by the comparison of `ignite-ipu parity`."""
    records = ({"entries": entries, "dropout": []} for entries in (expected, found))
    return compare(*records, TOLERANCE)


def compared(expected: List[Entry], found: List[Entry]) -> Verdict:
    """Return the verdict on two records."""
    parity = parity_of(expected, found)
    first = parity.first
    if first is None:
        return Verdict("same")
    apart = sum(not each.agrees for each in parity.differences)
    place = re.sub(r"\S*/", "", str(first))
    return Verdict("different", f"{place}; {apart} of {len(parity.differences)} values differ", first.kind)


class Notes(Recorder):
    """A record of the values that a program notes, and of no others: its updates run when the program has them run."""

    def start(self) -> None:
        """Observe nothing."""

    def stop(self) -> None:
        """Nothing is observed."""


def run(program: Program, device: bool) -> Tuple[List[Entry], Optional[Exception]]:
    """Return the record of a program on one side, and its exception."""
    recorder = Recorder(_ALL_UPDATES) if program.watched else Notes(_ALL_UPDATES)
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.py")
        path.write_text(render(program), encoding="utf-8")
        if program.front in SCRIPTS:
            call = functools.partial(_run_script, path, device, recorder, program)
        else:
            call = functools.partial(_run_module, path, device, recorder)
        error = _called_in_a_thread(call)
        if error is not None:
            traceback.clear_frames(error.__traceback__)
            gc.collect()  # IPUs that the program held
        linecache.cache.pop(str(path), None)
    return recorder.entries, error


def _called_in_a_thread(call: Callable[[], None]) -> Optional[Exception]:
    """Return the exception of a call, made without the frames of pytest and of the campaign on the stack.

    The device's side follows the names in all code of the user on the stack. The names in the campaign's code lead far,
    which takes as long as everything else, and belong to no program.
    """
    raised: List[Exception] = []

    def caught() -> None:
        try:
            call()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=caught)
    thread.start()
    thread.join()
    return raised[0] if raised else None


def _run_module(path: Path, device: bool, recorder: Recorder) -> None:
    """Run a script that itself tells its sides apart."""
    module = types.ModuleType("program")
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    recorder.start()
    try:
        module.run(device, lambda *values: note(recorder, *values))
    finally:
        recorder.stop()


def _run_script(path: Path, device: bool, recorder: Recorder, program: Program) -> None:
    """Run a script as `python` or `ignite-ipu run` does, with one argument that says nothing of devices."""

    def printed(*values: Any, sep: str = " ", **options: Any) -> None:
        if sep == SEPARATOR:
            note(recorder, *values)
        else:
            original(*values, sep=sep, **options)

    original = print
    config = IPUConfig(update=program.update)
    with unittest.mock.patch("builtins.print", printed):
        if device and isinstance(recorder, Notes):
            run_script(str(path), ["native"], config=config)
            return
        script = script_program(str(path))
        with started(str(path), ["native"], script.folder):
            run_recorded(script, recorder, config if device else None)


def note(recorder: Recorder, name: str, *values: Any) -> None:
    """Record a program's note under a name."""
    for place, part in leaves(_kept(values)):
        recorder.record("printed line", f"{name}{place}", "None" if part is None else part)


def _finite(value: Any) -> bool:
    """Return whether there is no infinity, and nothing that is no number, in a recorded value."""
    if value is None or value["kind"] == "text":
        return True
    values = value.get("values", value.get("value", value.get("norm")))
    return bool(torch.as_tensor(values).isfinite().all())


def _kept(value: Any) -> Any:
    """Return the compared parts of a value.

    RMSprop's counts of steps are the trainer's for all layers. States of weights may hold nothing, as those of SGD
    without momentum do in PyTorch 2.0.
    """
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key != "step" or "square_avg" not in value}
        return {key: _kept(item) for key, item in kept.items() if item != {"momentum_buffer": None}}
    if isinstance(value, (list, tuple)):
        return [_kept(item) for item in value]
    return value


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
