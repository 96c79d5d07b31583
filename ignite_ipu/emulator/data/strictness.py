"""Strictness of asynchronous loading: poisoned stale batches, and how long a silent worker is waited for.

On hardware a batch that is kept beyond its turn quietly changes its values, and a worker that hangs hangs everything.
Here both fail visibly. Each setting has an environment variable, read when it is needed, and a function that overrides
it in this process.
"""

from __future__ import annotations

import contextlib
import math
import os
from typing import Optional

POISON_VARIABLE = "IGNITE_IPU_POISON_STALE_BATCHES"
TIMEOUT_VARIABLE = "IGNITE_IPU_DATA_TIMEOUT"

_poison: Optional[bool] = None
_timeout: Optional[float] = None


def poisons_stale_batches() -> bool:
    """Return whether new accessors overwrite a batch (NaN, or an integer type's extreme) once the next is asked for.

    Raises:
        ValueError: `IGNITE_IPU_POISON_STALE_BATCHES` is neither 0 nor 1.
    """
    if _poison is not None:
        return _poison
    text = os.environ.get(POISON_VARIABLE, "1")
    if text not in ("0", "1"):
        raise ValueError(f"{POISON_VARIABLE} is {text!r}; it must be 1 (overwrite stale batches) or 0 (leave them).")
    return text == "1"


def set_poisoning(enabled: Optional[bool]) -> Optional[bool]:
    """Switch poisoning on or off for new accessors, and return the previous setting, to be restored afterwards.

    `None` leaves it to `IGNITE_IPU_POISON_STALE_BATCHES` again.
    """
    global _poison
    before, _poison = _poison, enabled
    return before


def worker_timeout() -> Optional[float]:
    """Return after how many seconds without an item a worker counts as hanging; `None` for never.

    Raises:
        ValueError: `IGNITE_IPU_DATA_TIMEOUT` is no number of seconds.
    """
    if _timeout is not None:
        return _timeout or None
    text = os.environ.get(TIMEOUT_VARIABLE, "600.0")
    with contextlib.suppress(ValueError):
        return _checked(float(text)) or None
    raise ValueError(f"{TIMEOUT_VARIABLE} is {text!r}; it must be a number of seconds, or 0 to wait for ever.")


def set_worker_timeout(seconds: Optional[float]) -> Optional[float]:
    """Set the seconds without an item after which a worker counts as hanging, and return the previous setting.

    0 waits for ever; `None` leaves it to `IGNITE_IPU_DATA_TIMEOUT` again.

    Raises:
        ValueError: `seconds` is negative or no finite number.
    """
    global _timeout
    before, _timeout = _timeout, None if seconds is None else _checked(seconds)
    return before


def _checked(seconds: float) -> float:
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"A worker timeout of {seconds} seconds makes no sense; give 0 or more.")
    return seconds
