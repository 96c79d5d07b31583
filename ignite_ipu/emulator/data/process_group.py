"""Killing a worker together with the loader processes it has started, and what they leave in shared memory."""

from __future__ import annotations

import contextlib
import glob
import os
import signal
import time
from typing import List

_DEATH_SECONDS = 1.0


def kill_group(leader: int) -> None:
    """Kill every process of the group that `leader` leads, and remove the shared memory they were just making.

    torch gives a segment a name for a moment, until it has opened it; who is killed in that moment leaves the name.

    Args:
        leader: A process not reaped yet, so that its number cannot be anybody else's.
    """
    members = _members(leader)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    deadline = time.monotonic() + _DEATH_SECONDS
    while any(map(_is_running, members)) and time.monotonic() < deadline:
        time.sleep(0.005)
    for member in members:
        for path in glob.glob(f"/dev/shm/torch_{member}_*"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _members(leader: int) -> List[int]:
    members = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(int(name)) == leader:
                    members.append(int(name))
    return members


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
