"""The emulated IPUs: who is attached to which, and a count of everything that crosses between them and the host."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import math
import os
import threading
import time
import weakref
from typing import Any, List, Optional

from ignite_ipu.emulator.device import machine
from ignite_ipu.emulator.device.machine import EmulatedMachine, IPUHolder
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger

WAIT_VARIABLE = "POPTORCH_WAIT_FOR_IPU"
TIMEOUT_VARIABLE = "IGNITE_IPU_WAIT_SECONDS"
_RETRY_SECONDS = 0.2
_REPORT_SECONDS = 15.0


@dataclasses.dataclass
class Counters:
    """Counts of events on the devices, for one executor or for the whole process."""

    compiles: int = 0  # Graphs captured and built.
    cache_hits: int = 0  # Compiles that found their result in the executable cache,
    cache_misses: int = 0  # and those that did not.
    attaches: int = 0  # Times the IPUs were taken,
    detaches: int = 0  # and given back.
    weight_uploads: int = 0  # Copies of all weights and buffers to the device,
    weight_upload_bytes: int = 0
    weight_downloads: int = 0  # and to the host.
    weight_download_bytes: int = 0
    optimizer_uploads: int = 0  # Times that hyper-parameters were sent.
    optimizer_state_uploads: int = 0  # Copies of the optimizer's state.
    optimizer_state_downloads: int = 0
    optimizer_updates: int = 0  # Weight updates.
    device_calls: int = 0  # Runs of a compiled program.
    micro_batches: int = 0  # Forward passes in these runs.

    def __sub__(self, earlier: Counters) -> Counters:
        """Return the counts since `earlier`, a copy made then."""
        before = vars(earlier)
        return Counters(**{name: count - before[name] for name, count in vars(self).items()})

    def copy(self) -> Counters:
        """Return the present counts, which further events leave alone."""
        return dataclasses.replace(self)


class Meter:
    """Counts an executor's events, and the process's with them."""

    def __init__(self) -> None:
        self.own = Counters()

    def add_call(self, micro_batches: int, updates: int) -> None:
        """Count one device call."""
        with _COUNTING:
            for counters in (self.own, _TOTAL):
                counters.device_calls += 1
                counters.micro_batches += micro_batches
                counters.optimizer_updates += updates

    def add(self, **events: int) -> None:
        """Add to the counters named."""
        with _COUNTING:
            for counters in (self.own, _TOTAL):
                for name, amount in events.items():
                    setattr(counters, name, getattr(counters, name) + amount)


def counters(executor: Any = None) -> Counters:
    """Return a copy of one executor's counters, or of the process's when `executor` is None."""
    return (_TOTAL if executor is None else executor._life.meter.own).copy()


def acquire(ipus: int, owner: object, description: str, ipu_id: Optional[int] = None) -> weakref.finalize[..., object]:
    """Take `ipus` free IPUs (a power of two) for `owner`, and return a function that releases them.

    That is called when the owner is collected, at the latest.

    Args:
        description: Name of the owner in error messages.
        ipu_id: The device that must provide them, numbered as in `machine.device_ids`; None for any.
    """
    groups = _groups(ipus, description, ipu_id)
    where = machine.machine()
    new = machine.holder(description, next(_TOKENS))
    if where.take(groups, new) is None:
        gc.collect()  # an executor and its optimizer hold each other until collected
        if where.take(groups, new) is None:
            _wait(where, groups, new, ipus)
    return weakref.finalize(owner, where.release, new)


def _groups(ipus: int, description: str, ipu_id: Optional[int]) -> List[range]:
    total = machine.emulated_ipus()
    if ipu_id is None:
        if ipus > total:
            raise backend_error(
                f"Failed to acquire {ipus} IPU(s) for {description}: the emulated machine has {total}. Set "
                f"{machine.IPUS_VARIABLE} to the size of the machine that you have in mind."
            )
        return [range(start, start + ipus) for start in range(0, total - ipus + 1, max(ipus, 1))]
    devices = machine.device_ids(total)
    if not 0 <= ipu_id < len(devices):
        raise backend_error(
            f"Failed to acquire device {ipu_id} (Options.useIpuId): a machine of {total} IPUs has the ids 0 to "
            f"{len(devices) - 1}; the first {total} are single IPUs, then come pairs, groups of four and so on."
        )
    if len(devices[ipu_id]) < ipus:
        raise backend_error(
            f"Device {ipu_id} (Options.useIpuId) has {len(devices[ipu_id])} IPU(s). Expected at least replication "
            f"factor * IPUs per replica = {ipus}. Choose the id of a larger group."
        )
    return [devices[ipu_id]]


def _wait(where: EmulatedMachine, groups: List[range], new: IPUHolder, ipus: int) -> None:
    """Try to take the IPUs until they are free, if the environment sets that."""
    started = time.monotonic()
    limit = _limit()
    reported = -_REPORT_SECONDS
    while True:
        users = {ipu: user for ipu, user in where.users().items() if any(ipu in group for group in groups)}
        text = ", ".join(f"IPU {ipu} by {user}" for ipu, user in sorted(users.items()))
        busy = (
            f"Failed to acquire {ipus} IPU(s) for {new.description}: the emulated machine has "
            f"{machine.emulated_ipus()}, in use: {text or 'none just now'}"
        )
        waited = time.monotonic() - started
        if os.environ.get(WAIT_VARIABLE, "0") in ("", "0"):
            raise backend_error(
                f"{busy}. Detach or destroy() another executor, or set {WAIT_VARIABLE}=1 to wait for one."
            )
        # Without users they were given back just now, and the next attempt takes them.
        if {user.pid for user in users.values()} == {os.getpid()} and threading.active_count() == 1:
            raise backend_error(
                f"{busy}. Waiting would never end: this process has them all, and no other thread that could give them "
                "back. Detach or destroy() another executor."
            )
        if waited >= limit:
            raise backend_error(f"{busy}. Gave up after {waited:.1f} s, as {TIMEOUT_VARIABLE}={limit:g} asks.")
        if waited - reported >= _REPORT_SECONDS:
            logger.warning("%s. Waiting%s.", busy, "" if limit == math.inf else f" for at most {limit:g} s")
            reported = waited
        time.sleep(_RETRY_SECONDS)
        if where.take(groups, new) is not None:
            return


def _limit() -> float:
    text = os.environ.get(TIMEOUT_VARIABLE, "inf")
    with contextlib.suppress(ValueError):
        if float(text) >= 0:
            return float(text)
    raise backend_error(f"{TIMEOUT_VARIABLE} must be a number of seconds, got {text!r}.")


_TOTAL = Counters()
_TOKENS = itertools.count()
_COUNTING = threading.Lock()
