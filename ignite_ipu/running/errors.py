"""`RunError`: something in a script that cannot be mapped to IPUs, with the line that does it."""

from __future__ import annotations

from typing import Optional, Tuple

from ignite_ipu.cli.command import UserError

__all__ = ["Line", "RunError"]

Line = Tuple[str, int]


class RunError(UserError):
    """A line of a script that cannot run on IPUs; the run ends there.

    Args:
        line: File and line number, None where it is not known.
        reason: Why not, and the way out.
    """

    def __init__(self, line: Optional[Line], reason: str) -> None:
        place = "" if line is None else f"{line[0]}:{line[1]}: "
        super().__init__(f"{place}{reason}")
        self.line = line
