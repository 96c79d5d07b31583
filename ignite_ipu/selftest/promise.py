"""A promise of the documentation, and the small program that shows whether it holds on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, List, NamedTuple, Optional

if TYPE_CHECKING:
    from ignite_ipu.selftest.bench import Bench

__all__ = ["Promise", "Promises", "Skipped"]

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
    ipus: int
    needs_emulator: bool


class Promises(List[Promise]):
    """The promises of one group, in the order in which they are checked.

    Args:
        group: The group's name.
        page: The page in `docs/` that makes them, where they do not name another.
    """

    def __init__(self, group: str, page: str) -> None:
        super().__init__()
        self.group = group
        self.page = page

    def promise(
        self, *, page: Optional[str] = None, ipus: int = 1, needs_emulator: bool = False
    ) -> Callable[[Program], Program]:
        """Add the decorated program, whose docstring is the promise, under the name of its function.

        Args:
            page: The page that promises it, if it is not the group's.
            ipus: IPUs that the program holds at once.
            needs_emulator: Whether only the emulator can provoke what the program looks at.
        """

        def add(program: Program) -> Program:
            name = f"{self.group}.{program.__name__.replace('_', '-')}"
            self.append(Promise(name, program.__doc__ or "", page or self.page, program, ipus, needs_emulator))
            return program

        return add

    def add(self, name: str, text: str, program: Program, page: Optional[str] = None) -> None:
        """Add a program that is made of another, with the promise that it checks."""
        self.append(Promise(f"{self.group}.{name}", text, page or self.page, program, 1, False))
