"""The emulated IPUs: who is attached to which, and a count of everything that crosses between them and the host."""

from __future__ import annotations

import dataclasses
import gc
import os
import threading
import time
import weakref
from typing import Any, Dict, FrozenSet, Optional, Set

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger

IPUS_VARIABLE = "IGNITE_IPU_EMULATED_IPUS"
MOST_IPUS = 64
_RETRY_SECONDS = 15.0


@dataclasses.dataclass
class Counters:
    """What happened on the devices, for one executor or for the whole process.

    Attributes:
        compiles: Graphs captured and built.
        attaches, detaches: Times the IPUs were taken and given back.
        weight_uploads, weight_downloads: Copies of all weights and buffers to the device and to the host.
        weight_upload_bytes, weight_download_bytes: Their volume.
        optimizer_uploads: Times that hyper-parameters were sent.
        optimizer_state_uploads, optimizer_state_downloads: Copies of the optimizer's state.
        optimizer_updates: Weight updates.
        device_calls: Runs of a compiled program.
        micro_batches: Forward passes in these runs.
    """

    compiles: int = 0
    attaches: int = 0
    detaches: int = 0
    weight_uploads: int = 0
    weight_upload_bytes: int = 0
    weight_downloads: int = 0
    weight_download_bytes: int = 0
    optimizer_uploads: int = 0
    optimizer_state_uploads: int = 0
    optimizer_state_downloads: int = 0
    optimizer_updates: int = 0
    device_calls: int = 0
    micro_batches: int = 0

    def __sub__(self, earlier: Counters) -> Counters:
        """Return what happened since `earlier`, a copy made then."""
        return Counters(
            **{
                field.name: getattr(self, field.name) - getattr(earlier, field.name)
                for field in dataclasses.fields(self)
            }
        )

    def copy(self) -> Counters:
        """Return the present counts, which further events leave alone."""
        return dataclasses.replace(self)


class Meter:
    """Counts an executor's events, and the process's with them."""

    def __init__(self) -> None:
        self.own = Counters()

    def add(self, **events: int) -> None:
        """Add to the counters named."""
        for counters in (self.own, _TOTAL):
            for name, amount in events.items():
                setattr(counters, name, getattr(counters, name) + amount)


def counters(executor: Any = None) -> Counters:
    """Return a copy of one executor's counters, or of the process's when `executor` is None."""
    return (_TOTAL if executor is None else executor._meter.own).copy()


class Device:
    """Some emulated IPUs, held by one executor."""

    def __init__(self, ipus: FrozenSet[int]) -> None:
        self.ipus = ipus

    def release(self) -> None:
        """Give the IPUs back; a second call does nothing."""
        _POOL.release(self.ipus)
        self.ipus = frozenset()


def emulated_ipus() -> int:
    """Return how many IPUs the emulated machine has.

    Raises:
        Error: The environment variable holds no positive number.
    """
    text = os.environ.get(IPUS_VARIABLE, str(MOST_IPUS))
    if not text.isdigit() or int(text) == 0:
        raise backend_error(f"{IPUS_VARIABLE} must be a positive number of IPUs, got {text!r}.")
    return int(text)


def acquire(ipus: int, owner: object, description: str, ipu_id: Optional[int] = None) -> Device:
    """Take `ipus` free IPUs for `owner`; they are given back when it is collected, at the latest.

    Args:
        ipus: How many.
        owner: The executor.
        description: What error messages call it.
        ipu_id: The first IPU of the group, None for any.

    Raises:
        Error: Not that many are free, and POPTORCH_WAIT_FOR_IPU is not set.
    """
    while True:
        taken = _POOL.take(ipus, description, ipu_id)
        if taken is None:
            gc.collect()  # an executor and its optimizer hold each other until collected
            taken = _POOL.take(ipus, description, ipu_id)
        if taken is not None:
            device = Device(taken)
            weakref.finalize(owner, _POOL.release, taken)
            return device
        busy = (
            f"Failed to acquire {ipus} IPU(s) for {description}: the emulated machine has {emulated_ipus()} "
            f"({IPUS_VARIABLE}), in use: {_POOL.describe()}. Detach or destroy() another executor"
        )
        if not os.environ.get("POPTORCH_WAIT_FOR_IPU"):
            raise backend_error(f"{busy}, or set POPTORCH_WAIT_FOR_IPU to wait for one.")
        logger.warning("%s. Waiting %g s.", busy, _RETRY_SECONDS)
        time.sleep(_RETRY_SECONDS)


class _Pool:
    """Which IPUs are taken, and by whom."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: Dict[int, str] = {}

    def take(self, ipus: int, description: str, first: Optional[int]) -> Optional[FrozenSet[int]]:
        total = emulated_ipus()
        starts = range(0, total - ipus + 1) if first is None else [first] if first + ipus <= total else []
        with self._lock:
            for start in starts:
                wanted: Set[int] = set(range(start, start + ipus))
                if not wanted & self._users.keys():
                    self._users.update(dict.fromkeys(wanted, description))
                    return frozenset(wanted)
        return None

    def release(self, ipus: FrozenSet[int]) -> None:
        with self._lock:
            for ipu in ipus:
                self._users.pop(ipu, None)

    def describe(self) -> str:
        with self._lock:
            users = ", ".join(f"IPU {ipu} by {user}" for ipu, user in sorted(self._users.items()))
        return users or "none"


_TOTAL = Counters()
_POOL = _Pool()
