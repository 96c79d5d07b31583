"""Runs programs in processes of their own that need not import torch, which takes longer than most of them do.

They are forked from a process that has imported torch and nothing of what is tested, have arguments, environment,
folder and streams of their own, and end as Python does. A test of what an untouched interpreter does starts one.
As a program it answers requests with exit codes, in lines of JSON.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence

_ROOT = Path(__file__).parents[1]


class Processes:
    """The process that they are forked from, which is started when it is first needed."""

    def __init__(self) -> None:
        self._process: Optional[subprocess.Popen[str]] = None

    def run(
        self,
        arguments: Sequence[object],
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[Path] = None,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Return what comes of `python ARGUMENTS...`, which begin with a script's path, `-c` or `-m`."""
        request = {"words": [str(each) for each in arguments], "env": dict(os.environ if env is None else env)}
        with tempfile.TemporaryDirectory() as folder:
            streams = [Path(folder, name) for name in ("output", "errors")]
            request.update(cwd=str(cwd or os.getcwd()), streams=[str(path) for path in streams])
            try:
                code = self._exit_code(request)
            except BaseException:  # a test's time may be over, and the next shall not read this answer
                self.close()
                raise
            done = subprocess.CompletedProcess(request["words"], code, *(path.read_text() for path in streams))
        if check:
            assert done.returncode == 0, done.stderr
        return done

    def close(self) -> None:
        """End the process, and what it has started."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None

    def _exit_code(self, request: Dict[str, Any]) -> int:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                cwd=_ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(json.loads(self._process.stdout.readline()))


def _serve() -> Optional[Dict[str, Any]]:
    """Return nothing in the process that forks the others, and in each of those what it is to be."""
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            return json.loads(line)
        status = os.waitpid(child, 0)[1]
        print(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), flush=True)
    return None


def _become(request: Dict[str, Any]) -> None:
    """Run the program as Python would have."""
    for number, path in enumerate(request["streams"], start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
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


if __name__ == "__main__":
    _request = _serve()
    if _request is not None:
        _become(_request)
