"""A server that forks worker processes and has imported torch and the main module once for all of them.

It is multiprocessing's own, `multiprocessing.forkserver.main`, started and reached otherwise. The process that starts
the server, those that the server makes, and forks of either use the same one. A new process finds the environment, the
process group, the output files and, in any number, the descriptors that it would find if it were spawned.
"""

from __future__ import annotations

import contextlib
import gc
import io
import multiprocessing.util
import os
import signal
import socket
import sys
import tempfile
import threading
from multiprocessing import context, forkserver, popen_forkserver, process, reduction, resource_tracker, spawn
from multiprocessing.connection import wait
from typing import Any, Dict, Iterator, List, Tuple

import torch
from torch.utils.data import DataLoader

from ignite_ipu.emulator.data.strictness import TIMEOUT_VARIABLE, worker_timeout
from ignite_ipu.emulator.data.worker.orphans import Ending
from ignite_ipu.emulator.trace.isolation import Turn

_MAIN = ("init_main_from_name", "init_main_from_path")
_SENT_AT_ONCE = 200
_util: Any = multiprocessing.util
_tracker: Any = resource_tracker


class _Server:
    """The way to the server: its socket, which has no name, and a pipe that keeps it alive while anybody can write."""

    def __init__(self) -> None:
        self._turn = Turn()
        self.socket = self.alive = self.pid = -1

    def connect(self, *descriptors: int) -> Tuple[int, int]:
        """Have a process made; return where its number and exit code can be read, and where its pickles are awaited."""
        with self._turn.lock, socket.socket(socket.AF_UNIX) as client:
            _tracker.ensure_running()
            try:
                client.connect(f"/proc/self/fd/{self.socket}")
            except OSError:  # there is none, or no longer
                self._start()
                client.connect(f"/proc/self/fd/{self.socket}")
            status, its_status = os.pipe()
            its_data, data = os.pipe()
            try:
                given = [its_data, its_status, self.alive, _tracker.getfd(), self.socket, *descriptors]
                reduction.sendfds(client, given)
            except BaseException:
                _util.close_fds(status, data)
                raise
            finally:
                _util.close_fds(its_data, its_status)
        return status, data

    def end(self) -> None:
        """Kill a server that does not answer, if this process has started it."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            if self.pid > 0:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)

    def _start(self) -> None:
        with contextlib.suppress(ChildProcessError):
            if self.pid > 0:
                os.waitpid(self.pid, os.WNOHANG)
        _util.close_fds(*[each for each in (self.socket, self.alive) if each >= 0])
        self.socket = self.alive = self.pid = -1
        preparation = spawn.get_preparation_data("poptorch data server")
        main = {key: preparation[key] for key in _MAIN if key in preparation}
        alive, self.alive = os.pipe()
        # Ctrl-C is for the program: the server ignores it before it takes any.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            with socket.socket(socket.AF_UNIX) as listener, tempfile.TemporaryDirectory() as folder:
                directory = os.open(folder, os.O_PATH)
                # However long the folder's name is, this one is short enough for a socket.
                listener.bind(f"/proc/self/fd/{directory}/server")
                self.socket = os.open("server", os.O_PATH | os.O_CLOEXEC, dir_fd=directory)
                os.close(directory)
                listener.listen()
                command = _command(preparation["sys_path"], listener.fileno(), alive, main)
                self.pid = _util.spawnv_passfds(command[0], command, [listener.fileno(), alive])
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(alive)


_server = _Server()


class _Inheritance:
    """Inheritance of a spawned process, for one that the server has forked; unpickling takes it over.

    So many descriptors will arrive by the socket that the process is given; first, its outputs (1, 2) of those numbers.
    """

    def __init__(self, descriptors: int, outputs: List[int]) -> None:
        self._arguments = descriptors, outputs, os.getpgrp(), dict(os.environ)

    def __reduce__(self) -> Any:
        return _inherit, self._arguments


class _Popen(popen_forkserver.Popen):
    """A process made by our server."""

    _fds: List[int]

    def _launch(self, process_obj: Any) -> None:
        preparation: Dict[str, Any] = spawn.get_preparation_data(process_obj.name)
        begin, rest = io.BytesIO(), io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(process_obj, rest)
            outputs = [each for each in (1, 2) if os.path.exists(f"/proc/self/fd/{each}")]
            given = [*outputs, *self._fds]
            reduction.dump({**preparation, "inherited": _Inheritance(len(given), outputs)}, begin)
        finally:
            context.set_spawning_popen(None)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self.sentinel, data = _server.connect(theirs.fileno())
            # The second shows the new process whether this one is still there.
            self.finalizer = _util.Finalize(self, _util.close_fds, (os.dup(data), self.sentinel))
            with open(data, "wb") as file:
                self.pid = self._number()
                for start in range(0, len(given), _SENT_AT_ONCE):
                    reduction.sendfds(ours, given[start : start + _SENT_AT_ONCE])
                file.write(begin.getbuffer())
                file.write(rest.getbuffer())

    def _number(self) -> int:
        """Return the new process's number, which also shows that the server has finished its imports."""
        seconds = worker_timeout()
        if not wait([self.sentinel], seconds):
            _server.end()
            raise TimeoutError(
                f"The server that forks worker processes has not answered for {seconds} seconds: the import of torch "
                f"or the main module hangs. If it is just slow, raise {TIMEOUT_VARIABLE} (seconds, 0 waits for ever)."
            )
        try:
            return int(forkserver.read_signed(self.sentinel))
        except EOFError:
            raise ConnectionResetError(
                "The server that forks worker processes has died. See its output above, if any."
            ) from None


class _Process(process.BaseProcess):
    _start_method = "forkserver"
    _Popen = _Popen


class ServerContext(context.ForkServerContext):
    """multiprocessing's context of the start method `forkserver`, with our server."""

    Process = _Process  # type: ignore[assignment]


@contextlib.contextmanager
def mended_workers(loader: Any) -> Iterator[None]:
    """Let worker processes that a torch loader starts in the `with` block end with this one, and begin at once.

    Where they would be spawned, or come from multiprocessing's fork server, and each would import torch and the main
    module, they come from our server.
    """
    if not isinstance(loader, DataLoader) or not loader.num_workers or isinstance(loader.worker_init_fn, Ending):
        yield
        return
    given, made_by = loader.worker_init_fn, loader.multiprocessing_context
    default = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    loader.worker_init_fn = Ending(given)
    if (default if made_by is None else made_by.get_start_method()) != "fork":
        loader.multiprocessing_context = ServerContext()
    try:
        yield
    finally:
        loader.worker_init_fn, loader.multiprocessing_context = given, made_by


def serve(listener: int, alive: int, main: Dict[str, Any]) -> None:
    """Fork processes until no client is left; this is the server's main function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    # OpenMP's threads do not survive a fork.
    torch.set_num_threads(1)
    current: Any = process.current_process()
    current._inheriting = True  # a main module that starts processes without a check of its name gets an error
    try:
        spawn.prepare(main)
    except BaseException:
        pass  # each process tries again, and reports its failure
    finally:
        del current._inheriting
    if threading.active_count() > 1:  # they would be missing in a fork, with whatever they hold
        command = _command(sys.path, listener, alive, {})
        os.execv(command[0], command)
    gc.collect()
    gc.freeze()
    forkserver.main(listener, alive, [])


def _command(path: List[str], listener: int, alive: int, main: Dict[str, Any]) -> List[Any]:
    program = f"import sys; sys.path[:] = {path!r}; from {__name__} import serve; serve({listener}, {alive}, {main!r})"
    return [spawn.get_executable(), *_util._args_from_interpreter_flags(), "-c", program]


def _inherit(descriptors: int, outputs: List[int], group: int, environment: Dict[str, str]) -> None:
    with contextlib.suppress(OSError):  # it is of another session
        os.setpgid(0, group)
    state: Any = forkserver._forkserver
    _server.alive, _server.pid = state._forkserver_alive_fd, -1
    _server.socket, given = state._inherited_fds
    received: List[int] = []
    with socket.socket(fileno=given) as connection:
        while len(received) < descriptors:
            received += reduction.recvfds(connection, min(_SENT_AT_ONCE, descriptors - len(received)))
    for output, descriptor in zip(outputs, received):
        os.dup2(descriptor, output)
        os.close(descriptor)
    state._inherited_fds = received[len(outputs) :]
    os.environ.clear()
    os.environ.update(environment)
