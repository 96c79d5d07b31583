"""A promise of the documentation, and the small program that shows whether it holds on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, NamedTuple

if TYPE_CHECKING:
    from ignite_ipu.selftest.bench import Bench

__all__ = ["Program", "Promise", "Skipped", "needs"]

Program = Callable[["Bench"], None]


class Skipped(Exception):
    """A program cannot run here; the message is the reason."""


class Promise(NamedTuple):
    """One promise.

    Attributes:
        name: The group's name, a dot, and the program's own.
        text: What is promised, in one sentence.
        page: The page in `docs/` that promises it.
        program: Raises if the promise is broken, `Skipped` if that cannot be told here.
        ipus: IPUs that the program holds at once.
        needs_emulator: Whether only the emulator can provoke what the program looks at.
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


def needs(**attributes: Any) -> Callable[[Program], Program]:
    """Note what of the decorated program's `Promise` is not as its group has it: `page`, `ipus`, `needs_emulator`."""

    def note(program: Program) -> Program:
        program.needs = attributes  # type: ignore[attr-defined]
        return program

    return note
