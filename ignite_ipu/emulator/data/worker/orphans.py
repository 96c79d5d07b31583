"""End of a process whose parent has died, with all that it has started and would leave behind.

A pipe to the parent is not enough: every process that the parent forks holds it open, and multiprocessing's fork server
lives as long as these do. So each process that loads data also checks once a second that its parent is alive.
"""

from __future__ import annotations

import contextlib
import glob
import multiprocessing.util
import os
import shutil
import signal
import threading
import time
from multiprocessing import parent_process, process
from typing import Any, Callable, Optional, Set

from ignite_ipu.emulator.device.machine import process_start

_LOOK_SECONDS = 1.0
_DEATH_SECONDS = 1.0
# Held while files and directories are made that an end would leave behind.
_NAMED = threading.RLock()


def end_with_parent(sockets: Optional[str] = None) -> None:
    """End this process within seconds of its parent, however the parent ends.

    Its process group ends with it, and the directory for sockets is removed, the parent's or its own. No named segment
    of shared memory is left: torch creates one and unlinks its name while no other thread runs.
    """
    current: Any = process.current_process()
    current._config["tempdir"] = sockets  # multiprocessing looks here before it creates one
    arguments = (parent_process(), current._config)
    threading.Thread(target=_watch, args=arguments, name="end with parent", daemon=True).start()


class Ending:
    """A loader's `worker_init_fn`, `given`, after `end_with_parent`; made by the process that starts the workers."""

    def __init__(self, given: Optional[Callable[[int], None]]) -> None:
        self._given = given
        with _NAMED:
            self._sockets = multiprocessing.util.get_temp_dir()

    def __call__(self, worker: int) -> None:
        end_with_parent(self._sockets)
        if self._given is not None:
            self._given(worker)


def kill_group(leader: int) -> None:
    """Kill every process of the group that `leader` leads, but this one, and remove the shared memory they were making.

    torch gives a segment a name for a moment, until it has opened it; who is killed in that moment leaves the name.
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


def _members(leader: int) -> Set[int]:
    members = set()
    for pid in {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == leader and process_start(pid):
                members.add(pid)
    return members


def _watch(parent: Any, settings: Any) -> None:
    while parent.is_alive() and process_start(parent.pid):
        parent.join(_LOOK_SECONDS)
    if os.getpgrp() == os.getpid():
        kill_group(os.getpid())
    _NAMED.acquire(timeout=_DEATH_SECONDS)
    if settings["tempdir"]:
        shutil.rmtree(settings["tempdir"], ignore_errors=True)
    os._exit(1)
