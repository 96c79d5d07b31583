"""A worker process as its accessor sees it: forked from it or from a server, watched while waited for, always ended."""

from __future__ import annotations

import atexit
import collections
import contextlib
import multiprocessing
import os
import pickle
import select
import signal
import time
import weakref
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import Any, Deque, Dict, Iterable, Optional, Tuple

from ignite_ipu.emulator.data.strictness import TIMEOUT_VARIABLE, worker_timeout
from ignite_ipu.emulator.data.worker import orphans, worker
from ignite_ipu.emulator.data.worker.memory import SharedFile
from ignite_ipu.emulator.data.worker.server import ServerContext
from ignite_ipu.emulator.data.worker.worker import Message, MessageKind, is_ready
from ignite_ipu.emulator.enums import SharingStrategy
from ignite_ipu.emulator.values.structures import registered_parsers

POLITE_SECONDS = 10.0
INTERRUPT_SECONDS = 10.0
_LOOK_EVERY = 0.25
_STACK_SECONDS = 1.0
_LONGEST_STACK = 1 << 20


class WorkerFailed(Exception):
    """The worker raised, died, hangs or was never made; the text has the reason, and it is no longer running."""


class WorkerProcess:
    """One running worker; it shares items in `memory`.

    It inherits `dataset` by `Fork`, shares the memory of its tensors by `SharedMemory`, and else gets a copy.
    """

    def __init__(self, dataset: Iterable[Any], settings: worker.WorkerSettings, strategy: SharingStrategy) -> None:
        self._owner = os.getpid()
        self._inbox: Deque[Message] = collections.deque()
        self._unsent: Dict[MessageKind, Message] = {}
        self.is_running = False
        is_fork = strategy == SharingStrategy.Fork
        context: Any = multiprocessing.get_context("fork") if is_fork else ServerContext()
        self._connection, theirs = context.Pipe()
        self.memory, self._stack = SharedFile(), SharedFile()
        source: Any = dataset
        try:
            if strategy in (SharingStrategy.FileSystem, SharingStrategy.ForkServer):
                source = SharedFile.pickled(dataset)
            # All loader processes use this one, which is in no worker's group: it removes the names of semaphores when
            # the last of them has ended.
            resource_tracker.ensure_running()
            inherited = self._connection if is_fork else None
            # Not a daemon: those may not have loader processes of their own.
            self._process = context.Process(
                target=worker.run,
                args=(theirs, inherited, source, self.memory, self._stack, settings),
                name="poptorch data worker",
                daemon=False,
            )
            self._process.start()
        except BaseException as error:
            self._let_go()
            if isinstance(error, (ConnectionError, TimeoutError)):
                raise WorkerFailed(str(error)) from None
            raise
        finally:
            theirs.close()
            if isinstance(source, SharedFile):
                source.close()
        self.is_running = True
        self.pid: int = self._process.pid
        _running.add(self)

    def send(self, message: Message) -> None:
        """Send a message now or, if a worker that does not listen has filled the connection, later; never block.

        A later `FREED` or `ITERATE` says all that an earlier one did, so only the latest of each is kept back.
        """
        self._unsent.pop(message.kind, None)
        self._unsent[message.kind] = message
        self._flush()

    def receive(self) -> Message:
        """Return the next message about items, or raise `WorkerFailed` for a worker that does not send one."""
        started = time.monotonic()
        while True:
            exited = self._has_exited()
            if exited or not self._inbox:
                self._read_all()
            # Items that it loaded before it raised are still valid. If it died without a word, nothing that it says is
            # trusted.
            if exited and not any(message.kind == MessageKind.FAILED for message in self._inbox):
                code = self._end(kill=True)
                how = f"exited with code {code} before it was asked to"
                if code is not None and code < 0:
                    how = f"was killed by signal {signal.Signals(-code).name}"
                raise WorkerFailed(
                    f"worker process {self.pid} {how}. See its output above, if any; a kill often means that memory "
                    "ran out."
                )
            if self._inbox:
                message = self._inbox.popleft()
                if message.kind == MessageKind.FAILED:
                    self.stop()
                    raise WorkerFailed(f"worker process {self.pid} raised {message.body}")
                return message
            self._flush()
            seconds = worker_timeout()
            if seconds is not None and time.monotonic() - started > seconds:
                stack = self._ask_for_stack()
                self._end(kill=True)
                raise WorkerFailed(
                    f"worker process {self.pid} hangs: it has delivered nothing for {seconds} seconds and was killed. "
                    f"If the data set is just slow, raise {TIMEOUT_VARIABLE} (seconds, 0 waits for ever). {stack}"
                )
            wait([self._connection, self._process.sentinel], _LOOK_EVERY)

    def stop(self) -> None:
        """End the process: ask, interrupt after `POLITE_SECONDS`, kill after `INTERRUPT_SECONDS` more.

        Nothing happens if it has ended, or in a fork of the process that started it.
        """
        if not self.is_running or os.getpid() != self._owner:
            return
        is_polite = False
        try:
            self.send(Message(MessageKind.STOP))
            is_polite = self._exits_within(POLITE_SECONDS)
            if not is_polite:
                os.kill(self.pid, signal.SIGINT)
                is_polite = self._exits_within(INTERRUPT_SECONDS)
        finally:
            self._end(kill=not is_polite)

    def _end(self, kill: bool) -> Optional[int]:
        """Leave no process, descriptor or file behind; return the exit code."""
        self.is_running = False
        _running.discard(self)
        if kill:
            # Its loader processes are in its group; it is itself only once it has begun to run.
            orphans.kill_group(self.pid)
            self._process.kill()
        self._process.join()
        code: Optional[int] = self._process.exitcode
        self._process.close()
        self._let_go()
        return code

    def _let_go(self) -> None:
        for each in (self._connection, self.memory, self._stack):
            each.close()
        self._inbox.clear()

    def _flush(self) -> None:
        try:
            # There is always room for one such message where there is any.
            while self._unsent and is_ready(self._connection, select.POLLOUT):
                self._connection.send(self._unsent.pop(next(iter(self._unsent))))
        except OSError:
            # It has gone; the next wait for it raises.
            self._unsent.clear()

    def _read_all(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while is_ready(self._connection):
                self._inbox.append(self._connection.recv())

    def _has_exited(self) -> bool:
        # The sentinel stays open as long as any loader process of the worker lives, so ask for the worker itself. It
        # is not waited for here, so that its number stays its own until its group is killed.
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            # A child of the fork server, or one that has been reaped: multiprocessing has its exit code.
            return self._process.exitcode is not None

    def _exits_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self._has_exited():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._flush()
            wait([self._connection, self._process.sentinel], min(left, _LOOK_EVERY / 5))
            # Read on, or it could block while it says something.
            self._read_all()
        return True

    def _ask_for_stack(self) -> str:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        text, deadline = b"", time.monotonic() + _STACK_SECONDS
        while time.monotonic() < deadline:
            time.sleep(_STACK_SECONDS / 20)
            before, text = text, os.pread(self._stack.fileno(), _LONGEST_STACK, 0)
            if text and text == before:
                break
        if not text:
            return "It never came to run: the import of the main module hangs."
        return f"Where it hangs:\n{text.decode('utf-8', 'replace')}"


_running: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


def pickled_parsers(strategy: SharingStrategy) -> Tuple[bytes, ...]:
    """Return the registered parsers for a process that does not inherit them.

    One that does not pickle is left out. It only matters if the data set yields its type; the worker then raises.
    """
    if strategy == SharingStrategy.Fork:
        return ()
    pairs = []
    for pair in registered_parsers().items():
        with contextlib.suppress(Exception):
            pairs.append(pickle.dumps(pair))
    return tuple(pairs)


def _stop_all() -> None:
    for process in list(_running):
        process.stop()


# multiprocessing joins its children at exit, and would wait for ours for ever. It has registered before us, since it is
# imported above, so it runs after us.
atexit.register(_stop_all)
