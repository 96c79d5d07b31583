"""Substitutions made while a script ran, each logged once."""

from __future__ import annotations

import dataclasses
import linecache
import logging
import os
from typing import Dict, List, Optional, Tuple

from ignite_ipu.errors import RunError
from ignite_ipu.running.ownership import Line

__all__ = ["Journal", "Substitution"]

_logger = logging.getLogger("ignite_ipu.running")


@dataclasses.dataclass(frozen=True)
class Substitution:
    """Something in a script that means another thing on IPUs.

    Attributes:
        file, line: Where the script has it.
        original: What the script called.
        became: What it means now.
    """

    file: str
    line: int
    original: str
    became: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}: {self.original} -> {self.became}"


class Journal:
    """Collects substitutions and refusals.

    Attributes:
        substitutions: In the order in which they were first made.
        refusals: What could not be mapped.
    """

    def __init__(self) -> None:
        self.substitutions: List[Substitution] = []
        self.refusals: List[RunError] = []
        self._known: Dict[Tuple[Line, str, str], None] = {}

    def note(self, line: Optional[Line], original: str, became: str) -> None:
        """Log a substitution, unless it was made at this line before."""
        place = line or ("<unknown>", 0)
        key = (place, original, became)
        if key in self._known:
            return
        self._known[key] = None
        substitution = Substitution(place[0], place[1], original, became)
        self.substitutions.append(substitution)
        _logger.info("%s", substitution)

    def refuse(self, line: Optional[Line], what: str, reason: str) -> RunError:
        """Return the error for something that cannot be mapped.

        It is remembered, so that a script which catches every exception does not go on as if nothing had happened.
        """
        text = "" if line is None else linecache.getline(*line).strip()
        error = RunError(line, f"{what} cannot be mapped to IPUs: {reason}" + (f"\n    {text}" if text else ""))
        self.refusals.append(error)
        return error
