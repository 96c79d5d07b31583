"""Programs killed at random moments: soon after, no process, shared memory or file of theirs is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Set

from tests.resilience.loading import KINDS

SECONDS = 60.0  # a machine with other work takes its time; what is left then stays
_ROOT = Path(__file__).parents[2]
_MARK = "IGNITE_IPU_TEST_PROGRAM"
_SHARED = "/dev/shm/"
_START_SECONDS = 300.0


class Left(NamedTuple):
    """Resources that an ended program still holds."""

    processes: List[str]
    shared_memory: Set[str]
    files: List[str]

    def __bool__(self) -> bool:
        return bool(self.processes or self.shared_memory or self.files)


class Program:
    """A program with processes of its own, all of which are found by a variable in their environment.

    Args:
        words: Its command line.
    """

    def __init__(self, words: List[str]) -> None:
        self._mark = uuid.uuid4().hex
        self._folder = tempfile.TemporaryDirectory()
        environment = {**os.environ, _MARK: self._mark, "TMPDIR": self._folder.name, "OMP_NUM_THREADS": "1"}
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115  # until close()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._shared: Set[str] = set()
        self._process = subprocess.Popen(
            words, stdout=self._output, stderr=self._errors, cwd=_ROOT, env={**environment, "PYTHONPATH": str(_ROOT)}
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self, lines: int = 1) -> List[int]:
        """Return the numbers that the program has said to be ready with."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            said = [int(line.split()[1]) for line in self._said(self._output).splitlines() if line.startswith("ready")]
            if len(said) >= lines:
                return said
            assert self._process.poll() is None, f"it ended by itself:\n{self._said(self._errors)}"
            if time.monotonic() > deadline:
                there = "\n".join(map(_line, self.processes()))
                raise AssertionError(f"{there}\ndo not start:\n{self._said(self._errors)}")
            time.sleep(0.02)

    def kill(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a process of it, and record the shared memory of all of them."""
        for each in self.processes():
            self._shared |= _mapped(each) | {path.name for path in Path(_SHARED).glob(f"torch_{each}_*")}
        os.kill(pid, number)

    def processes(self) -> Iterator[int]:
        """Yield all processes that have not died."""
        mark = f"{_MARK}={self._mark}".encode()
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0") and _state(int(name)) not in "ZX":
                    yield int(name)
            except OSError:
                continue

    def left(self, alive: Optional[int] = None) -> Left:
        """Return its remaining resources.

        Args:
            alive: The process whose group alone is looked at; all of them, shared memory and files otherwise.
        """
        self._process.poll()
        if alive is not None:
            return Left([_line(pid) for pid in self.processes() if _group(pid) == alive], set(), [])
        shared = {name for name in self._shared if os.path.exists(_SHARED + name)}
        return Left([_line(pid) for pid in self.processes()], shared, os.listdir(self._folder.name))

    def wait_until_gone(self, alive: Optional[int] = None, most: float = SECONDS) -> float:
        """Return after how many seconds nothing was left.

        Raises:
            AssertionError: Something is, after `most` seconds.
        """
        started = time.monotonic()
        while True:
            left = self.left(alive)
            took = time.monotonic() - started
            if not left:
                return took
            assert took < most, f"after {took:.1f} s there is still {left}"
            time.sleep(0.1)

    def errors(self) -> str:
        """Return its standard error."""
        return self._said(self._errors)

    def close(self) -> None:
        """End everything."""
        for pid in list(self.processes()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        for name in self._shared:
            Path(_SHARED + name).unlink(missing_ok=True)
        self._output.close()
        self._errors.close()
        self._folder.cleanup()

    def _said(self, file: object) -> str:
        return os.pread(file.fileno(), 1 << 16, 0).decode()  # type: ignore[attr-defined]


def loading(kind: str) -> Program:
    return Program([sys.executable, "-m", "tests.resilience.loading", kind])


def launched(kind: str, instances: int = 2) -> Program:
    program = str(Path(__file__).with_name("loading.py"))
    return Program([sys.executable, "-m", "ignite_ipu", "launch", "--instances", str(instances), program, kind])


def kill_when_ready(program: Program, number: signal.Signals, victim: str = "program", ready: int = 1) -> float:
    """Kill a program, or its process that loads data, when it runs; return how long it took until all was gone."""
    try:
        worker = program.wait_until_ready(ready)[0]
        if victim == "worker":
            program.kill(worker, number)
            program.wait_until_gone(alive=worker)
        program.kill(program.pid, number)
        return program.wait_until_gone()
    finally:
        program.close()


def kill_at_random(kills: int, seed: int = 0) -> Dict[str, int]:
    """Kill so many programs at random moments; return how many of each kind, and by which end."""
    drawn = random.Random(seed)
    killed: Dict[str, int] = {}
    slowest = 0.0
    for _ in range(kills):
        kind = drawn.choice([*KINDS, "launched"])
        program = launched("fork server") if kind == "launched" else loading(kind)
        number = drawn.choice([signal.SIGKILL, signal.SIGTERM])
        moment = drawn.choice(["starting", "running", "running"])
        try:
            worker = 0
            if moment == "running":
                worker = program.wait_until_ready(2 if kind == "launched" else 1)[0]
            time.sleep(drawn.random() * (3.0 if moment == "starting" else 0.3))
            if worker and drawn.random() < 0.25:
                program.kill(worker, signal.SIGKILL)
                program.wait_until_gone(alive=worker)
                moment = "worker"
            program.kill(program.pid, number)
            slowest = max(slowest, program.wait_until_gone())
        except AssertionError as error:
            raise AssertionError(f"{kind}, {moment}, {number.name}: {error}") from None
        finally:
            program.close()
        for name in (kind, moment):
            killed[name] = killed.get(name, 0) + 1
    return {**killed, "slowest (ms)": int(slowest * 1000)}


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _line(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        words = "?"
    return f"{pid}: {words[:150]}"


def _mapped(pid: int) -> Set[str]:
    """Return the names of shared memory and semaphores that a process has mapped."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return set()
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if _SHARED in line}
    return {path[len(_SHARED) :] for path in paths if path.startswith(_SHARED) and not path.endswith("(deleted)")}
