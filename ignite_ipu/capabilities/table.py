"""One entry of the table of capabilities."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any


class Treatment(enum.Enum):
    """Treatment of a call in a program that runs on IPUs."""

    ANSWERED = "answered"
    """The call returns the answer of a machine with one device."""
    LEFT_OUT = "left out"
    """The call does nothing and returns None."""
    FIGURE = "answered with a note"
    """The call returns a figure that no IPU has; one note of the run names it."""
    HOST = "done on the host"
    """The host does it, at the time of the call."""
    REFUSED = "refused"
    """The call ends the run."""


@dataclasses.dataclass(frozen=True)
class Capability:
    """Treatment of one name.

    Attributes:
        name: Dotted name of a function or class, as `torch.cuda.synchronize`.
        treatment: What becomes of a call.
        sentence: Reason of a refusal with the way out, or a description of the result.
        answer: Result of a call that is answered.
        harmless: Whether the call is right on a machine without a GPU, too, so that `check` does not report it.
    """

    name: str
    treatment: Treatment
    sentence: str = ""
    answer: Any = None
    harmless: bool = False

    @property
    def last(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]
