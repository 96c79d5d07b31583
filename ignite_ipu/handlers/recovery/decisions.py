"""Decisions of `Recovery` about device faults, and the tally of a run."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from pathlib import Path
from typing import List, Optional

from ignite_ipu import backend

__all__ = [
    "EXIT_PREEMPTED",
    "EXIT_RESET_NEEDED",
    "Decision",
    "Preempted",
    "RecoveryStatus",
    "ResetNeeded",
    "resume_command",
]

_KEPT_DECISIONS = 100
_LONGEST_WAIT = 60.0

RETRY, RESET, EXIT, STOP = "retry", "reset", "exit", "stop"


@dataclasses.dataclass(frozen=True)
class Decision:
    """Decision about one fault.

    Attributes:
        iteration: Of the trainer.
        error: Message of PopTorch.
        recovery_action: The reset that PopTorch asks for; None for an unrecoverable fault.
        attempt: How often this call has failed.
        action: "retry" from the snapshot; "reset" by the user's hook, then retry; "exit" with the state saved, for a
            reset that only an operator can do; "stop" with the state saved.
        wait: Seconds waited before the retry.
    """

    iteration: int
    error: str
    recovery_action: Optional[str]
    attempt: int
    action: str
    wait: float


@dataclasses.dataclass
class RecoveryStatus:
    """Tally of a `Recovery` handler; it is `trainer.state.recovery`.

    Attributes:
        faults: Device calls that failed.
        recoveries: Calls that were made good.
        replayed_calls: Calls made again for that.
        snapshots: Snapshots taken, and the seconds that they took.
        decisions: The newest decisions, oldest first.
        saved: The file with the state of a run that ended early.
    """

    faults: int = 0
    recoveries: int = 0
    replayed_calls: int = 0
    snapshots: int = 0
    snapshot_seconds: float = 0.0
    decisions: List[Decision] = dataclasses.field(default_factory=list)
    saved: Optional[Path] = None

    def note(self, decision: Decision) -> None:
        """Count a fault, and keep its decision."""
        self.faults += 1
        self.decisions[:] = [*self.decisions[1 - _KEPT_DECISIONS :], decision]


def decide(error: Exception, iteration: int, attempt: int, retries: int, backoff: float, has_reset: bool) -> Decision:
    """Return the action for a fault, of a call that has failed `attempt` times and may fail `retries` times.

    `backoff` are the seconds before the first retry, doubled for each further one, up to a minute. `has_reset` is
    whether there is a hook for other resets than that of the IPUs in use.
    """
    recoverable = isinstance(error, backend.poptorch().RecoverableError)
    # PopTorch's attributes are of the class, and the next error overwrites them.
    needed = str(getattr(error, "recovery_action", "IPU_RESET")) if recoverable else None
    if needed is None or attempt > retries:
        action = STOP
    elif needed == "IPU_RESET":
        action = RETRY
    else:
        action = RESET if has_reset else EXIT
    wait = min(backoff * 2 ** (attempt - 1), _LONGEST_WAIT) if action in (RETRY, RESET) else 0.0
    return Decision(iteration, str(error), needed, attempt, action, wait)


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
