"""Runs programs in processes of their own that need not import torch, which takes longer than most of them do.

They are forked from a process that has imported the libraries that programs use and nothing of this one. They have
arguments, environment, folder and streams of their own. They end as Python does, but leave those libraries in memory:
Python takes a third of a second to free them. A test of the start of an interpreter starts one. Programs that start
Python themselves can be given one that forks, too (`forked_python.py`). As a program it answers requests with the ids
of processes, in lines of JSON.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import selectors
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import types
import weakref
from pathlib import Path
from typing import AbstractSet, Any, Dict, List, Mapping, Optional, Sequence

_ROOT = Path(__file__).parents[1]
# torch imports the second with the first optimizer.
_IMPORTED = ("torch", "torch._dynamo", "ignite.engine", "ignite.handlers", "ignite.metrics", "accelerate")
# Not that of the test which needs the first process. Without the last, inductor compiles programs, to look at what the
# processor can do.
_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "1"}
_LOOK_SECONDS = 0.005
_ENDED = (signal.SIGCHLD,)
_MOST_FILES = 253
"""How many a message between processes can carry."""
# The connections of the Pythons that wait for a program, by its id.
_waiting: Dict[int, socket.socket] = {}


class Processes:
    """The process that they are forked from, which is started when it is first needed."""

    def __init__(self) -> None:
        self._process: Optional[subprocess.Popen[str]] = None
        self._folder: Optional[tempfile.TemporaryDirectory[str]] = None

    def run(
        self,
        arguments: Sequence[object],
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[Path] = None,
        check: bool = False,
        without: Sequence[str] = (),
        forks: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Return the outcome of `python ARGUMENTS...`, which begin with a script's path, `-c` or `-m`.

        The packages in `without` cannot be imported. If it `forks`, so do the programs that it starts by
        `sys.executable`, and the processes that it spawns.
        """
        with self.start(arguments, env, cwd, without, forks) as process:
            done = subprocess.CompletedProcess(process.words, process.wait(), process.output(), process.errors())
        if check:
            assert done.returncode == 0, done.stderr
        return done

    def run_command(self, command: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
        """Return the result of a command that begins with the path of Python: it takes the place of subprocess.run."""
        return self.run(command[1:], env=more.get("env"), cwd=more.get("cwd"))

    def start(
        self,
        arguments: Sequence[object],
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[Path] = None,
        without: Sequence[str] = (),
        forks: bool = False,
    ) -> Process:
        """Return the process of `python ARGUMENTS...`, which is killed at the end of a `with` block if it still runs.

        Its interrupts raise KeyboardInterrupt, whether or not the tests ignore them.
        """
        self._begin()
        assert self._folder and self._process and self._process.stdin and self._process.stdout
        folder = Path(tempfile.mkdtemp(dir=self._folder.name))
        words = [str(each) for each in arguments]
        variables = dict(os.environ if env is None else env)
        request = {"words": words, "env": variables, "cwd": str(cwd or os.getcwd()), "folder": str(folder)}
        try:
            self._process.stdin.write(json.dumps({**request, "without": list(without), "forks": forks}) + "\n")
            self._process.stdin.flush()
            return Process(words, int(self._process.stdout.readline()), folder)
        except BaseException:  # a test's time may be over, and the next shall not read this answer
            self.close()
            raise

    @property
    def python(self) -> str:
        """The path of a `python` whose programs are forked, for `sys.executable`."""
        self._begin()
        assert self._folder
        return str(Path(self._folder.name, "python"))

    def _begin(self) -> None:
        if self._process is None:
            self._folder = tempfile.TemporaryDirectory()
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, self._folder.name],
                cwd=_ROOT,
                env=_ENVIRONMENT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            assert self._process.stdout
            try:
                self._process.stdout.readline()  # when it has imported the libraries
            except BaseException:  # a test's time may be over
                self.close()
                raise

    def close(self) -> None:
        """End the process, and its children."""
        if self._process is not None and self._folder is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._folder.cleanup()
            self._process = self._folder = None


class Process:
    """A process that has been forked, whose streams are files.

    Attributes:
        words: Its arguments.
        pid: Its id.
        returncode: Its exit code, or minus the number of the signal that ended it; None before `wait`.
    """

    def __init__(self, words: Sequence[str], pid: int, folder: Path) -> None:
        self.words = words
        self.pid = pid
        self.returncode: Optional[int] = None
        self._streams = [folder / name for name in ("output", "errors")]
        self._ended = folder.parent / f"{pid}.ended"
        self._read = 0

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)
            self.wait()

    def line(self) -> str:
        """Return the next line of its output, which may take a while; an empty text if it ends before."""
        while True:
            ended = self._ended.exists()
            text = self.output()[self._read :] if self._streams[0].exists() else ""
            found, newline, _ = text.partition("\n")
            if newline or ended:
                self._read += len(found + newline)
                return found + newline
            time.sleep(_LOOK_SECONDS)

    def send_signal(self, sent: int) -> None:
        """Send it a signal, if it has not ended."""
        if not self._ended.exists():
            os.kill(self.pid, sent)

    def wait(self, seconds: float = float("inf")) -> int:
        """Return its exit code when it has ended.

        Raises:
            TimeoutError: It has not ended after so many seconds.
        """
        started = time.monotonic()
        while not self._ended.exists():
            if time.monotonic() - started > seconds:
                raise TimeoutError(f"{self.words} runs for {seconds:g} seconds")
            time.sleep(_LOOK_SECONDS)
        self.returncode = int(self._ended.read_text())
        return self.returncode

    def output(self) -> str:
        """Return all that it has written so far."""
        return self._streams[0].read_text()

    def errors(self) -> str:
        """Return all that it has written to its stream for errors so far."""
        return self._streams[1].read_text()


def _serve(folder: Path) -> Optional[Dict[str, Any]]:
    """Return nothing in the process that forks the others, and in each of those its request."""
    for name in _IMPORTED:
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    gc.freeze()  # or each process would look through all of it when it ends
    python = folder / "python"
    python.write_text(f"#!{sys.executable} -IS\n{Path(__file__).with_name('forked_python.py').read_text()}")
    python.chmod(stat.S_IRWXU)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "socket"))
    listening.listen(16)
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, lambda *_: _note_ended(folder))
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(listening, selectors.EVENT_READ)
        text = b""
        while True:
            for key, _ in selector.select():
                requests: List[Dict[str, Any]] = []
                connection = None
                if key.fd == 0:
                    read = os.read(0, 1 << 20)
                    if not read:
                        return None
                    *lines, text = (text + read).split(b"\n")
                    requests = [json.loads(line) for line in lines]
                elif key.fileobj is listening:
                    connection, _ = listening.accept()
                    requests = _received(connection)
                    selector.register(connection, selectors.EVENT_READ)
                elif not _pass_on(key.fileobj):  # type: ignore[arg-type]
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                for request in requests:
                    if _forked(connection):
                        listening.close()
                        return {**request, "python": str(folder / "python")}
                    for stream in request.get("streams", ()):
                        os.close(stream)


def _forked(connection: Optional[socket.socket]) -> bool:
    """Fork a process, whose end the connection is told, or whose id is printed; returns whether this is the child."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDED)  # until the child is known
    child = os.fork()
    if not child:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for each in (connection, *_waiting.values()):
            if each is not None:
                each.close()
    elif connection is None:
        print(child, flush=True)
    else:
        _waiting[child] = connection
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDED)
    return not child


def _received(connection: socket.socket) -> List[Dict[str, Any]]:
    """Return the request of a Python that waits for a program, with the streams and files that it passes on.

    There is none if that Python was killed before it had sent all of it.
    """
    streams = array.array("i")
    length, ancillary, *_ = connection.recvmsg(4, socket.CMSG_LEN(_MOST_FILES * streams.itemsize))
    for _, _, data in ancillary:
        streams.frombytes(data)
    missing, text = int.from_bytes(length, "big"), b""
    while missing:
        part = connection.recv(missing)
        if not part:
            break
        missing, text = missing - len(part), text + part
    if missing or not text:
        for stream in streams:
            os.close(stream)
        return []
    return [{**json.loads(text), "streams": streams.tolist(), "forks": True}]


def _pass_on(connection: socket.socket) -> bool:
    """Send a program the signals that its Python has been sent; returns whether that still waits."""
    try:
        numbers = connection.recv(100)
    except ConnectionResetError:  # it was killed before it had read the end of its program
        numbers = b""
    for child in [child for child, each in _waiting.items() if each is connection]:
        for number in numbers or [signal.SIGKILL]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
    return bool(numbers)


def _note_ended(folder: Path) -> None:
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not child:
            return
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        connection = _waiting.pop(child, None)
        if connection is None:
            part = folder / f"{child}.part"
            part.write_text(str(code))
            part.rename(folder / f"{child}.ended")
        else:
            with contextlib.suppress(OSError):  # its Python was killed
                connection.send(str(code).encode())
                connection.shutdown(socket.SHUT_RDWR)


def _become(request: Dict[str, Any]) -> None:
    """Run the program as Python would have."""
    streams = request.get("streams")
    if streams is None:
        files = [Path(request["folder"], name) for name in ("output", "errors")]
        streams = [os.open(each, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for each in files]
        streams = [os.open(os.devnull, os.O_RDONLY), *streams]
    _put_files(streams, [0, 1, 2, *request.get("inherited", ())])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if "waiting" in request:
        os.getppid = lambda: _parent_of(request["waiting"])
    options = request.get("options", ())
    sys.dont_write_bytecode = sys.dont_write_bytecode or "-B" in options
    if "-u" in options:
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    if request["forks"]:
        sys.executable = request["python"]
        multiprocessing.set_executable(request["python"])
    for package in request.get("without", ()):
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            del sys.modules[name]
        sys.modules[package] = None  # type: ignore[assignment]
    sys.path[1:1] = map(os.path.abspath, filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep)))
    first, *rest = request["words"]
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(rest[0], main.__dict__)
    elif first == "-m":
        sys.argv, sys.path[0] = rest, request["cwd"]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [first, *rest], os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")


def _put_files(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Give open files other numbers, in whose place other files may be."""
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD, max(numbers) + 1) for each in files]
    for each in files:
        os.close(each)
    for each, number in zip(moved, numbers):
        os.dup2(each, number)
        os.close(each)


def _parent_of(process: int) -> int:
    """Return the id of the parent of a process, 1 if the process has ended."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 1


def _end(code: object, known: AbstractSet[str]) -> None:
    """End the process as Python does after `sys.exit(code)`, except that it does not free the modules in `known`."""
    if not isinstance(code, (int, type(None))):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    _free({name: module for name, module in sys.modules.items() if name == "__main__" or name not in known})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


def _free(modules: Dict[str, types.ModuleType]) -> None:
    found = [weakref.ref(each) for each in modules.values() if getattr(each, "__dict__", globals()) is not globals()]
    for name in modules:
        del sys.modules[name]
    modules.clear()
    gc.collect()
    for module in filter(None, (reference() for reference in reversed(found))):
        names = vars(module)
        for private in (True, False):
            for name in [name for name in names if name.startswith("_") is private and name != "__builtins__"]:
                names[name] = None


if __name__ == "__main__":
    _request = _serve(Path(sys.argv[1]))
    if _request is not None:
        _known, _code = frozenset(sys.modules), None
        try:
            _become(_request)
        except SystemExit as _exit:
            _code = _exit.code
        _end(_code, _known)
