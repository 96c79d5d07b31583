"""Functions that run in several connected processes, forked from the one that tests: none imports torch again."""

from __future__ import annotations

import contextlib
import os
import pickle
import runpy
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence

import torch._dynamo  # noqa: F401  # imported with the first optimizer, and by none of the processes again

from ignite_ipu.emulator import install
from ignite_ipu.emulator.popdist.instances import Job
from ignite_ipu.emulator.poprun import reserved_port

_SECONDS = 250.0


class Together:
    """A function that runs in `count` processes at the same time, which a launcher's variables describe.

    Attributes:
        pids: Of the processes.
    """

    def __init__(self, function: Callable[..., Any], *args: Any, count: int = 2) -> None:
        self._resources = contextlib.ExitStack()
        self._folder = self._resources.enter_context(tempfile.TemporaryDirectory())
        port = self._resources.enter_context(reserved_port())
        self.pids: List[int] = []
        self._codes: Dict[int, int] = {}
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(count):
            pid = os.fork()
            if not pid:
                self._run(rank, count, port, function, args)
            self.pids.append(pid)

    def wait(self) -> List[Any]:
        """Return the function's result in each process.

        Raises:
            AssertionError: It failed in one, or took too long.
        """
        deadline = time.monotonic() + _SECONDS
        while not self.ended():
            assert time.monotonic() < deadline, "the processes do not end"
            time.sleep(0.01)
        found = [self.result(rank) for rank in range(len(self.pids))]
        failed = [text for text in found if isinstance(text, _Failure)]
        assert not failed, "\n".join(map(str, failed))
        return found

    def ended(self, rank: int = -1) -> bool:
        """Return whether one process, or all of them, have ended."""
        for number, pid in enumerate(self.pids):
            if number not in self._codes and os.waitpid(pid, os.WNOHANG)[0]:
                self._codes[number] = 1
        return len(self._codes) == len(self.pids) if rank < 0 else rank in self._codes

    def result(self, rank: int) -> Any:
        """Return the function's result in a process, or the text of its error."""
        file = Path(self._folder, str(rank))
        return pickle.loads(file.read_bytes()) if file.exists() else _Failure(f"process {rank} was killed")

    def kill(self, rank: int) -> None:
        os.kill(self.pids[rank], signal.SIGKILL)

    def close(self) -> None:
        """End the remaining processes."""
        for rank in range(len(self.pids)):
            if not self.ended(rank):
                self.kill(rank)
        while not self.ended():
            time.sleep(0.01)
        self._resources.close()

    def _run(self, rank: int, count: int, port: int, function: Callable[..., Any], args: Any) -> None:
        with contextlib.suppress(BaseException):
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
            os.environ.update({name: str(number) for name, number in names.items()})
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            try:
                result = pickle.dumps(function(*args))
            except BaseException as error:
                text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
                result = pickle.dumps(_Failure(f"process {rank}: {text}"))
            Path(self._folder, f"{rank}.part").write_bytes(result)
            os.replace(Path(self._folder, f"{rank}.part"), Path(self._folder, str(rank)))
        os._exit(0)


class _Failure(str):
    """The traceback of a process that has failed."""


def together(function: Callable[..., Any], *args: Any, count: int = 2) -> List[Any]:
    """Return the results of a function in each of `count` connected processes.

    Raises:
        AssertionError: It fails in one of them.
    """
    with running(function, *args, count=count) as processes:
        return processes.wait()


@contextlib.contextmanager
def running(function: Callable[..., Any], *args: Any, count: int = 2) -> Iterator[Together]:
    """Have a function run in `count` connected processes, in the `with` block."""
    processes = Together(function, *args, count=count)
    try:
        yield processes
    finally:
        processes.close()


def become_an_instance(job: Job) -> None:
    """Describe a process of `together` as PopRun does, to PopTorch alone."""
    rank = int(os.environ["RANK"])
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    os.environ.update(job.variables(rank))


def run_in_instances(program: Path, *words: str, job: Job) -> None:
    """Run a program for the SDK in the instances of a job, on emulated IPUs.

    Raises:
        AssertionError: It fails in one of them.
    """
    together(_run_instance, program, words, job, count=job.instances)


def _run_instance(program: Path, words: Sequence[str], job: Job) -> None:
    become_an_instance(job)
    sys.argv = [str(program), *words]
    warnings.simplefilter("ignore")
    with install():
        runpy.run_path(str(program), run_name="__main__")
