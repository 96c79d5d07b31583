"""Processes that a script starts by `torch.multiprocessing.spawn`: each runs the script's function on IPUs of its own.

Python imports the main module again in a spawned process, before it unpickles the function that runs there. This module
is imported in the place of the script: it substitutes the script's calls, and then imports the script.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import shutil
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple
from unittest import mock

from ignite_ipu.errors import RunError
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.running.patches import Substitutes, list_substitutions, lists_substitutions
from ignite_ipu.running.program import Main
from ignite_ipu.running.script_code import ScriptCode, Substitution
from ignite_ipu.running.substituted import refusal_behind, substitute

_FOLDER = "IGNITE_IPU_SPAWNED"
"""Names the folder in which a spawned process finds its job, and leaves its report."""
_JOB = "job.pickle"
_MAIN = "__mp_main__"  # as Python names the main module there


class _Job(NamedTuple):
    program: Main
    config: IPUConfig
    lists: bool


class _Report(NamedTuple):
    substitutions: List[Substitution]
    refusal: Optional[str]


_substitutes: Optional[Substitutes] = None


class Spawned:
    """A function of a script, which runs in spawned processes with the script's substitutes.

    Args:
        function: The function, called with the number of the process and the arguments of `spawn`.
        folder: Gets the report of each process.
    """

    def __init__(self, function: Callable[..., Any], folder: str) -> None:
        self._function, self._folder = function, folder

    def __call__(self, rank: int, *args: Any) -> None:
        assert _substitutes is not None  # the main module of this process has been imported
        refusal: Optional[BaseException] = None
        try:
            with list_substitutions() if rank == 0 and _lists else contextlib.nullcontext():
                self._function(rank, *args)
        except Exception as error:
            refusal = error if isinstance(error, RunError) else refusal_behind(error, _substitutes)
            if refusal is None or refusal is error:
                raise
            raise refusal from error
        finally:
            _substitutes.undo()
            refusal = refusal or next(iter(_substitutes.refusals), None)
            report = _Report(_substitutes.substitutions, None if refusal is None else str(refusal))
            with contextlib.suppress(FileNotFoundError):  # the script has not waited for this process
                Path(self._folder, str(rank)).write_bytes(pickle.dumps(report))
        if refusal is not None:
            raise refusal


class ProcessSpawner:
    """Starts processes of a program that `ignite-ipu run` runs.

    Args:
        program: The program.
        config: Settings of its trainers, accelerators and loops.
    """

    def __init__(self, program: Main, config: IPUConfig) -> None:
        self._program, self._config = program, config

    def start(self, substitutes: Substitutes, original: Callable[..., Any], arguments: Dict[str, Any]) -> Any:
        """Act as `spawn`, with its arguments by name.

        Raises:
            RunError: A process met something that cannot be mapped to IPUs.
        """
        folder, join = tempfile.mkdtemp(prefix="ignite-ipu-spawned-"), arguments.pop("join", True)
        job = _Job(self._program, self._config, lists_substitutions())
        try:
            Path(folder, _JOB).write_bytes(pickle.dumps(job))
            function = Spawned(arguments.pop("fn"), folder)
            with mock.patch.dict(os.environ, {_FOLDER: folder}), _imported_as_main():
                context = original(function, join=False, **arguments)
            if not join:
                weakref.finalize(context, shutil.rmtree, folder, True)
                return context
            self._wait_for(context, substitutes, folder, arguments.get("nprocs", 1))
        except BaseException:
            shutil.rmtree(folder, True)
            raise
        shutil.rmtree(folder, True)
        return None

    def _wait_for(self, context: Any, substitutes: Substitutes, folder: str, count: int) -> None:
        try:
            while not context.join():
                pass
        except Exception as error:
            for _, report in _reports(folder, count):
                if report.refusal is not None:
                    refusal = RunError(None, report.refusal)
                    substitutes.refusals.append(refusal)
                    raise refusal from error
            raise
        finally:
            for rank, report in _reports(folder, count):
                substitutes.substitutions += report.substitutions if rank == 0 else []


def _reports(folder: str, count: int) -> Iterator[Tuple[int, _Report]]:
    for rank in range(count):
        with contextlib.suppress(FileNotFoundError):
            yield rank, pickle.loads(Path(folder, str(rank)).read_bytes())


@contextlib.contextmanager
def _imported_as_main() -> Iterator[None]:
    """Have processes that are started in the `with` block import this module in the place of the script."""
    spec = importlib.util.find_spec(__name__)
    with mock.patch.object(sys.modules["__main__"], "__spec__", spec, create=True):
        yield


_lists = False


def begin() -> Dict[str, Any]:
    """Substitute the calls of the script in a spawned process, import the script, and return its names."""
    global _substitutes, _lists
    folder = os.environ.pop(_FOLDER)
    job: _Job = pickle.loads(Path(folder, _JOB).read_bytes())
    _lists = job.lists
    code = ScriptCode(job.program.path, job.program.package)
    _substitutes = substitute(code, job.program.folder, job.config, spawner=ProcessSpawner(job.program, job.config))
    return job.program.run(_MAIN)


if __name__ == _MAIN:
    from ignite_ipu.running import spawned

    globals().update(spawned.begin())
