"""The emulated machine: its IPUs, and the processes that hold them.

Every process has a machine of its own by default. `IGNITE_IPU_EMULATED_IPUS` (the number of IPUs) or
`IGNITE_IPU_RUNTIME_DIR` (the folder of the table of holders) in the environment describes one machine. All processes of
a user then share it, as they would share the IPUs of a Pod. The table names each holder's process; IPUs of dead
processes are free.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import stat
import tempfile
import threading
import time
from typing import Any, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options import compile_checks
from ignite_ipu.emulator.trace.isolation import Turn

IPUS_VARIABLE = "IGNITE_IPU_EMULATED_IPUS"
RUNTIME_VARIABLE = "IGNITE_IPU_RUNTIME_DIR"
MOST_IPUS = 64
_LOCK_SECONDS = 60.0
# In the middle of a change the garbage collector may release IPUs of another machine, in the same thread.
_TURN = Turn()


class IPUHolder(NamedTuple):
    """Process that has an IPU.

    Its start time in the kernel distinguishes it from a later process with the same id; a token distinguishes its
    holdings.
    """

    pid: int
    started: str
    description: str
    token: int

    def __str__(self) -> str:
        where = "" if self.pid == os.getpid() else f" of process {self.pid}"
        return f"{self.description}{where}"


def holder(description: str, token: int) -> IPUHolder:
    """Return a holder in this process."""
    return IPUHolder(os.getpid(), process_start(os.getpid()), description, token)


class EmulatedMachine:
    """The IPUs of this process alone."""

    def __init__(self) -> None:
        self._users: Dict[int, IPUHolder] = {}
        self._leaving: List[IPUHolder] = []
        self._changed_by: Optional[int] = None

    def take(self, groups: Sequence[range], new: IPUHolder) -> Optional[FrozenSet[int]]:
        """Give the first of `groups` whose IPUs are all free to `new`; None when there is no such group."""
        with self._changing() as users:
            for group in groups:
                if not users.keys() & set(group):
                    users.update(dict.fromkeys(group, new))
                    return frozenset(group)
        return None

    def release(self, old: IPUHolder) -> None:
        """Take everything back that `old` has."""
        if old.pid != os.getpid():
            return  # a forked child's copy: the IPUs are its parent's
        self._leaving.append(old)
        if self._changed_by == threading.get_ident():
            return  # the garbage collector calls, in the middle of a change: that one, or the next, takes it along
        with self._changing():
            pass

    def users(self) -> Dict[int, IPUHolder]:
        """Return the holder of each IPU that is taken."""
        with self._changing() as users:
            return dict(users)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Dict[int, IPUHolder]]:
        with _TURN.lock:
            # The garbage collector may come in, in this thread.
            self._changed_by = threading.get_ident()
            try:
                with self._table() as users:
                    self._let_go(users)
                    yield users
                    self._let_go(users)
            finally:
                self._changed_by = None

    @contextlib.contextmanager
    def _table(self) -> Iterator[Dict[int, IPUHolder]]:
        """Yield the holder of each taken IPU; changes in the `with` block are kept."""
        # After a fork the child has a machine of its own, on which nothing is taken yet.
        self._users = {ipu: user for ipu, user in self._users.items() if user.pid == os.getpid()}
        yield self._users

    def _let_go(self, users: Dict[int, IPUHolder]) -> None:
        while self._leaving:
            old = self._leaving.pop()
            for ipu in [ipu for ipu, user in list(users.items()) if user == old]:
                del users[ipu]


class SharedMachine(EmulatedMachine):
    """The IPUs that all processes with one runtime directory share, which is made if it does not exist."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        # The ids of processes mean something on one host, or in one container on it.
        namespaces = "/proc/self/ns/pid"
        namespace = os.stat(namespaces).st_ino if os.path.exists(namespaces) else 0
        self._path = os.path.join(_private_directory(directory), f"ipus-{platform.node()}-{namespace}.json")

    @contextlib.contextmanager
    def _table(self) -> Iterator[Dict[int, IPUHolder]]:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        with open(descriptor, "r+", encoding="utf-8", errors="replace") as file:
            self._lock(file)  # given up when the file is closed, at the latest by the kernel
            before = file.read()
            users = {ipu: user for ipu, user in self._parse(before).items() if process_start(user.pid) == user.started}
            yield users
            after = json.dumps({str(ipu): list(user) for ipu, user in users.items()})
            if after != before:
                # An empty file that is written again would be forced to the disk when it is closed.
                file.seek(0)
                file.write(after)
                file.truncate()

    def _lock(self, file: Any) -> None:
        """Wait for the table, but not for a process that was stopped in the middle of a change."""
        started = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() - started > _LOCK_SECONDS:
                    raise backend_error(
                        f"The table of emulated IPUs in use, {self._path}, has been kept for {_LOCK_SECONDS:g} s by "
                        f"{_lock_holder(os.fstat(file.fileno()).st_ino)}, which has probably been stopped. Let it go "
                        f"on, end it, or set {RUNTIME_VARIABLE} to another directory."
                    ) from None
            time.sleep(0.001)

    def _parse(self, text: str) -> Dict[int, IPUHolder]:
        if not text:
            return {}
        try:
            return {
                int(ipu): IPUHolder(int(pid), str(started), str(description), int(token))
                for ipu, (pid, started, description, token) in json.loads(text).items()
            }
        except (ValueError, TypeError, AttributeError, RecursionError):
            logger.warning("The table of emulated IPUs in use, %s, is damaged: all IPUs count as free.", self._path)
            return {}


def machine() -> EmulatedMachine:
    """Return the machine that the environment describes."""
    directory = os.environ.get(RUNTIME_VARIABLE)
    if not directory:
        if IPUS_VARIABLE not in os.environ:
            return _OWN
        base = os.environ.get("XDG_RUNTIME_DIR")
        directory = os.path.join(base or tempfile.gettempdir(), "ignite-ipu" if base else f"ignite-ipu-{os.getuid()}")
    if directory not in _SHARED:
        _SHARED[directory] = SharedMachine(directory)
    return _SHARED[directory]


def emulated_ipus() -> int:
    """Return how many IPUs the emulated machine has; an `Error` if the environment says no positive number."""
    text = os.environ.get(IPUS_VARIABLE, str(MOST_IPUS))
    if not text.isdigit() or int(text) == 0:
        raise backend_error(f"{IPUS_VARIABLE} must be a positive number of IPUs, got {text!r}.")
    return int(text)


def device_ids(total: int) -> List[range]:
    """Return the IPUs behind each device id, numbered as `gc-info` does: single IPUs first, then pairs, fours, ..."""
    found: List[range] = []
    size = 1
    while size <= total:
        found += [range(start, start + size) for start in range(0, total - size + 1, size)]
        size *= 2
    return found


def _private_directory(directory: str) -> str:
    what = f"The directory {directory}, where processes agree on who has which emulated IPU,"
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        status = os.stat(directory)
    except OSError as error:
        raise backend_error(f"{what} cannot be used: {error}. Set {RUNTIME_VARIABLE} to another one.") from error
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022:
        raise backend_error(
            f"{what} can be written by other users. Set {RUNTIME_VARIABLE} to one of your own (chmod 700)."
        )
    return directory


def process_start(pid: int) -> str:
    """Return a process's start time as the kernel counts it, "" when there is none or it has died."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except (FileNotFoundError, ProcessLookupError):
        if os.path.exists("/proc/self/stat"):
            return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "unknown"  # a system without /proc: only that it runs


def _lock_holder(inode: int) -> str:
    """Name the process that has locked a file, if the kernel reports it."""
    with contextlib.suppress(OSError):
        with open("/proc/locks", encoding="utf-8", errors="replace") as file:
            for line in file:
                # "1: FLOCK ADVISORY WRITE <pid> <device>:<inode> 0 EOF"; those who wait have an arrow.
                fields = line.split()
                if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
                    return f"process {fields[4]}"
    return "another process"


_OWN = EmulatedMachine()
_SHARED: Dict[str, SharedMachine] = {}


# The IPUs of the emulated machine are hardware, unless IPU models stand in for them. The rules for hardware (powers of
# two, devices for one program each) hold exactly where the answer is yes.


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Return whether a device with that many IPUs exists: none does where the environment selects IPU models."""
    return not compile_checks.selected_by_environment() and num_ipus <= emulated_ipus()


def ipuHardwareVersion() -> int:
    """Return the version of the machine's IPUs, 2 (Mk2).

    Raises:
        AssertionError: The environment selects IPU models.
    """
    if compile_checks.selected_by_environment():
        raise AssertionError(
            f"No IPU hardware available: {' or '.join(compile_checks.VARIABLES)} selects IPU models. Unset it."
        )
    return 2


def poptorchAtExit() -> None:
    """Do nothing: PopTorch releases its devices here, and emulated devices end with the process."""
