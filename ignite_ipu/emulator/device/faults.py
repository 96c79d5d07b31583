"""Faults on demand: a device call or a copy that fails the way hardware fails, for tests of the reaction."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from typing import Dict, Iterator, List, Mapping, Optional

from ignite_ipu.emulator.errors import RECOVERY_ACTIONS, Error, recoverable_error, unrecoverable_error


@dataclasses.dataclass(frozen=True)
class Fault:
    """Fault that is injected.

    Attributes:
        recovery_action: Which reset mends it, one of `errors.RECOVERY_ACTIONS`; None when no reset does.
        message: Text of the error.
        lasting: Whether every later request to the device fails with the same error, until its IPUs are given back.
    """

    recovery_action: Optional[str] = "IPU_RESET"
    message: str = "Injected fault"
    lasting: bool = False

    def __post_init__(self) -> None:
        if self.recovery_action is not None and self.recovery_action not in RECOVERY_ACTIONS:
            raise ValueError(
                f"recovery_action must be one of {RECOVERY_ACTIONS}, or None for an unrecoverable fault; "
                f"got {self.recovery_action!r}."
            )

    def error(self) -> Error:
        """Return the exception that the device call or the copy raises."""
        if self.recovery_action is None:
            return unrecoverable_error(self.message)
        return recoverable_error(self.message, self.recovery_action)


# For each kind of event, the faults of the first, the second and so on.
_Plan = Dict[str, Iterator[Optional[Fault]]]
_PLANS: List[_Plan] = []
_LOCK = threading.Lock()


@contextlib.contextmanager
def inject_faults(faults: Mapping[int, Fault], copies: Optional[Mapping[int, Fault]] = None) -> Iterator[None]:
    """Make device calls, and copies between device and host, fail in the `with` block.

    Args:
        faults: Fault by the number of the device call it hits; the first call in the block is number 0, and calls
            of all executors count, failed ones too.
        copies: The same for copies of the weights to the host or the device, and of the optimizer's state or the random
            state to the host. Attaching counts as one: it loads the program with all of these.

    The call or copy fails before it does anything, and leaves the executor attached. A fault that is not `lasting`
    leaves the state of the device unchanged.
    """
    plan: _Plan = {kind: map(hits.get, itertools.count()) for kind, hits in (("call", faults), ("copy", copies or {}))}
    with _LOCK:
        _PLANS.append(plan)
    try:
        yield
    finally:
        with _LOCK:
            _PLANS.remove(plan)


def next_fault(kind: str) -> Optional[Fault]:
    """Count one event, a "call" or a "copy", and return the fault that hits it."""
    if not _PLANS:
        return None
    hit: Optional[Fault] = None
    with _LOCK:
        for plan in _PLANS:
            hit = next(plan[kind]) or hit
    return hit
