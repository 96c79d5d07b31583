"""The promises, in groups; one module each.

A module's public functions are its programs, under their names, and their docstrings the promises of its `PAGE`.
Programs that are made of others stand in its `MORE`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, NamedTuple

from ignite_ipu import backend

if TYPE_CHECKING:
    from ignite_ipu.selftest.bench import Bench

Program = Callable[["Bench"], None]
OK, FAILED, SKIPPED = "ok", "failed", "skipped"
# PopTorch gives out devices of so many IPUs to one process.
_SIZES = (64, 32, 16, 8, 4, 2, 1)


class Skipped(Exception):
    """A program cannot run here; the message is the reason."""


class Promise(NamedTuple):
    """One promise, under the names of its group and its program, in one sentence and with the page in `docs/`.

    The program, which holds so many IPUs at once, raises if the promise is broken, and `Skipped` if that cannot be
    checked here. Some states can only be provoked by the emulator.
    """

    name: str
    text: str
    page: str
    program: Program
    ipus: int = 1
    needs_emulator: bool = False

    @property
    def group(self) -> str:
        return self.name.split(".")[0]


@dataclasses.dataclass
class PromiseOutcome:
    """Outcome of one promise; the reason has one line, empty if it is ok.

    `messages` are the log and the warnings of the program.
    """

    promise: Promise
    result: str = OK
    reason: str = ""
    traceback: str = ""
    seconds: float = 0.0
    messages: List[str] = dataclasses.field(default_factory=list)


def available() -> int:
    """Return the number of IPUs of the largest device that one program can have, 0 if there is none."""
    # Not at the top: the command's `--help` needs no settings.
    from ignite_ipu.program.options import is_simulated

    poptorch = backend.poptorch()
    if is_simulated(poptorch.Options()):
        return _SIZES[0]  # IPU models have any number
    return next((size for size in _SIZES if poptorch.ipuHardwareIsAvailable(size)), 0)


def needs(**attributes: Any) -> Callable[[Program], Program]:
    """Set fields of the program's `Promise` that differ from its group: `page`, `ipus`, `needs_emulator`."""

    def note(program: Program) -> Program:
        program.needs = attributes  # type: ignore[attr-defined]
        return program

    return note


_ORDER = ["device", "operators", "batching", "outputs", "optimizers", "schedules", "weights", "checkpoints"]
_ORDER += ["loaders", "precision", "captured", "pipelines", "faults"]


def every_promise() -> List[Promise]:
    """Return all promises, in the order in which they are checked."""
    return [promise for group in _ORDER for promise in _promises(group)]


def _promises(group: str) -> Iterator[Promise]:
    module = importlib.import_module(f"{__name__}.{group}")
    yield from getattr(module, "MORE", ())
    for name, program in vars(module).items():
        if inspect.isfunction(program) and program.__module__ == module.__name__ and not name.startswith("_"):
            needed = {"page": module.PAGE, **getattr(program, "needs", {})}
            yield Promise(f"{group}.{name.replace('_', '-')}", program.__doc__ or "", program=program, **needed)
