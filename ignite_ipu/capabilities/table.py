"""One entry of the table of capabilities, and a table of entries by name."""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import Any, Dict, Iterable, Iterator

_OF_GPUS = ("torch.cuda.", "torch.accelerator.")


class Treatment(enum.Enum):
    """Treatment of a call in a program that runs on IPUs."""

    ANSWERED = "answered"
    """The call returns the answer of a machine with one device."""
    LEFT_OUT = "left out"
    """The call does nothing and returns None or its argument."""
    FIGURE = "answered with a note"
    """The call returns a figure that no IPU has; one note of the run names it."""
    HOST = "done on the host"
    """The host does it, at the time of the call."""
    DEVICE = "part of the device's step"
    """The call is recorded, and the device does it in the step that it belongs to."""
    UPDATES_ON_HOST = "updates on the host"
    """From there on PyTorch makes the updates on the host, with gradients of the device."""
    REFUSED = "refused"
    """The call ends the run."""


@dataclasses.dataclass(frozen=True)
class Capability:
    """Treatment of one name.

    Attributes:
        name: Dotted name of a function, class or method, as `torch.cuda.synchronize`; of an argument, its class and the
            argument, as `torch.optim.Optimizer(amsgrad)`.
        treatment: How the library treats it.
        sentence: Reason of a refusal, or a description of the result.
        remedy: The way out, as a sentence without its period; "" for nothing to do.
        answer: Result of a call that is answered.
        harmless: Whether the call is right on a machine without a GPU, too, so that `check` does not report it.
        example: Code that shows it, in a training loop in front of `optimizer.step()`, or in the place of the code that
            it `replaces` there.
        listed: Whether its page of the documentation has a row for it, and not only for its kind.
    """

    name: str
    treatment: Treatment
    sentence: str = ""
    remedy: str = ""
    answer: Any = None
    harmless: bool = False
    example: str = ""
    replaces: str = ""
    listed: bool = True

    @property
    def last(self) -> str:
        """The last part of the name, without its argument."""
        return self.name.partition("(")[0].rpartition(".")[2]

    @property
    def argument(self) -> str:
        """The argument in the name, "" for none."""
        return self.name.partition("(")[2].rstrip(")")

    @property
    def reason(self) -> str:
        """The sentence and the way out, without the last period."""
        return f"{self.sentence}. {self.remedy}" if self.remedy else self.sentence

    @property
    def anchor(self) -> str:
        """The anchor of its row in the documentation."""
        return re.sub(r"\W+", "-", self.name).strip("-")

    @property
    def docs(self) -> str:
        """The place in the documentation where it is described."""
        page = "gpu-calls" if self.name.startswith(_OF_GPUS) else "training-calls"
        return f"docs/{page}.md#{self.anchor}" if self.listed else f"docs/{page}.md"

    @property
    def refusal(self) -> str:
        """The reason as the text of an error, with the place in the documentation."""
        return f"{self.reason}. Read more: {self.docs}"


class Table:
    """Entries by name."""

    def __init__(self, entries: Iterable[Capability]) -> None:
        self._entries: Dict[str, Capability] = {entry.name: entry for entry in entries}

    def __getitem__(self, name: str) -> Capability:
        return self._entries[name]

    def __iter__(self) -> Iterator[Capability]:
        return iter(self._entries.values())

    def with_treatment(self, *treatments: Treatment) -> Iterator[Capability]:
        """Yield the entries with some treatments."""
        return (entry for entry in self if entry.treatment in treatments)
