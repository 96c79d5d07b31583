"""Children to be killed: forked, so that they start at once, and watched through a byte of shared memory."""

from __future__ import annotations

import logging
import mmap
import os
import random
import signal
import sys
import time
import traceback
from typing import Callable, Dict, Optional, Tuple

PHASES = ("start", "train", "evaluate", "checkpoint", "migrate", "done")


class Child:
    """A process that runs `work(note)` and tells its phase.

    Args:
        work: Called in the child with a function that takes the name of a phase; its return ends the process with 0.
    """

    def __init__(self, work: Callable[[Callable[[str], None]], None], quiet: bool = True) -> None:
        self._memory = mmap.mmap(-1, 1)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _live(work, self._note, quiet)
        self._status: Optional[int] = None

    def _note(self, phase: str) -> None:
        self._memory[0] = PHASES.index(phase)

    @property
    def phase(self) -> str:
        return PHASES[self._memory[0]]

    @property
    def ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = status
        return self._status is not None

    def wait_for(self, phase: str, limit: float = 60.0) -> bool:
        """Wait until the child is in this phase; False if it ended before."""
        started = time.monotonic()
        while self.phase != phase:
            if self.ended:
                return False
            assert time.monotonic() - started < limit, f"a child hangs in {self.phase}"
            time.sleep(0.0002)
        return not self.ended

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def wait(self, limit: float = 60.0) -> int:
        """Wait for its end; returns the exit code, negative for a signal.

        Raises:
            AssertionError: It takes longer; it is killed.
        """
        started = time.monotonic()
        while not self.ended:
            if time.monotonic() - started > limit:
                self.kill()
                raise AssertionError(f"a child hangs in {self.phase}")
            time.sleep(0.001)
        assert self._status is not None
        code = -os.WTERMSIG(self._status) if os.WIFSIGNALED(self._status) else os.WEXITSTATUS(self._status)
        return code


def _live(work: Callable[[Callable[[str], None]], None], note: Callable[[str], None], quiet: bool) -> None:
    code = 1
    try:
        if quiet:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
            logging.disable(logging.CRITICAL)
        work(note)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        with open(2, "w", closefd=False) as stream:
            traceback.print_exc(file=stream)
    finally:
        os._exit(code)


def kill_somewhere(child: Child, drawn: random.Random, phases: Tuple[str, ...], killed: Dict[str, int]) -> bool:
    """Kill a child at a random moment of a random phase; False if it was done before."""
    if child.wait_for(drawn.choice(phases)):
        time.sleep(drawn.random() * drawn.choice([0.0005, 0.005, 0.05]))
    phase = child.phase
    if child.ended:
        return False
    child.kill()
    if child.wait() != -signal.SIGKILL:
        return False
    killed[phase] = killed.get(phase, 0) + 1
    return True
