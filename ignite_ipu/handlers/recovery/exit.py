"""Exit codes of runs that were not finished, and the command that goes on with one."""

from __future__ import annotations

import os
import shlex
import sys

__all__ = ["EXIT_PREEMPTED", "EXIT_RESET_NEEDED", "Preempted", "ResetNeeded", "resume_command"]

EXIT_PREEMPTED = 75
EXIT_RESET_NEEDED = 76


class Preempted(SystemExit):
    """The process was asked to end; the run's state is saved. Exits with 75, the temporary failure of sysexits.h."""

    def __init__(self) -> None:
        super().__init__(EXIT_PREEMPTED)


class ResetNeeded(SystemExit):
    """IPUs need a reset that only an operator can do; the run's state is saved. Exits with 76."""

    def __init__(self) -> None:
        super().__init__(EXIT_RESET_NEEDED)


def resume_command() -> str:
    """Return the command line of this process, for a shell: the same command goes on with the run."""
    arguments = list(getattr(sys, "orig_argv", [])) or [sys.executable, *sys.argv]
    arguments[0] = sys.executable or arguments[0]
    return f"cd {shlex.quote(os.getcwd())} && {' '.join(map(shlex.quote, arguments))}"
