"""Killing a worker together with the loader processes it has started, and what they leave in shared memory."""

from __future__ import annotations

import contextlib
import glob
import os
import signal
import time
from typing import Set

_DEATH_SECONDS = 1.0


def kill_group(leader: int) -> None:
    """Kill every process of the group that `leader` leads, but this one, and remove the shared memory they were making.

    torch gives a segment a name for a moment, until it has opened it; who is killed in that moment leaves the name.

    Args:
        leader: A process not reaped yet, so that its number cannot be anybody else's.
    """
    killed: Set[int] = set()
    deadline = time.monotonic() + _DEATH_SECONDS
    while time.monotonic() < deadline:
        members = _members(leader)
        if not members:
            break
        # Again, too: they may have started others.
        for member in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        killed |= members
        time.sleep(0.005)
    for member in killed:
        for path in glob.glob(f"/dev/shm/torch_{member}_*"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def is_running(pid: int) -> bool:
    """Tell whether there is such a process that has not died yet, whoever has still to be told."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _members(leader: int) -> Set[int]:
    members = set()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(int(name)) == leader and is_running(int(name)):
                    members.add(int(name))
    return members
