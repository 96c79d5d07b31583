"""Runs scripts, one after the other in a process of its own that has imported torch, which takes longer than most do.

Each starts from the same random state, in a folder of its own, and finds modules beside it as Python would have it.
The `__main__.py` of a package is started as `python -m` does, from the folder of the package.
As a program it answers the arguments of `_run` with the items of `Ran`, in lines of JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import random
import runpy
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import IO, Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from tests.processes import Processes

_ROOT = Path(__file__).parents[1]
# Beside the backends of `IGNITE_IPU_BACKEND`, for scripts as Python runs them: by `run_script`, on the emulator.
RUN = "run"
# Natively and by `run`, for some updates, with everything that they compute compared.
PARITY = "parity"
_UPDATES = 4


class Ran(NamedTuple):
    """The outcome of a script: its output, after RESULT and else, its refusal or traceback, updates on devices."""

    result: Any
    output: str
    messages: str
    error: str
    updates: int
    substitutions: List[str]

    @property
    def numbers(self) -> List[float]:
        """The numbers in the result, in order."""
        assert not self.error, self.error
        return _numbers(self.result)


class Scripts:
    """The process, which is started when it is first needed.

    Args:
        processes: Its process is forked from theirs, which has imported torch. Without them, Python is started.
    """

    def __init__(self, processes: Optional[Processes] = None) -> None:
        self._processes = processes
        self._process: Optional[subprocess.Popen[str]] = None
        self._errors: Optional[IO[str]] = None
        self._known: Dict[Tuple[Union[str, None], ...], Ran] = {}

    def run(self, path: Path, backend: str, *arguments: str, folder: Optional[Path] = None) -> Ran:
        """Return the outcome of a script with a backend; it is kept for the next call."""
        question = (str(path), backend, folder and str(folder), *arguments)
        if question not in self._known:
            try:
                self._known[question] = Ran(*self._answer(question))
            except BaseException:  # a test's time may be over, and the next shall not read this answer
                self.close()
                raise
        return self._known[question]

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _answer(self, question: Sequence[Optional[str]]) -> List[Any]:
        if self._process is None:
            path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
            self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # until close()
            self._process = subprocess.Popen(
                [self._processes.python if self._processes else sys.executable, "-m", "tests.scripts"],
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
        assert self._process.stdin and self._process.stdout and self._errors
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._errors.seek(0)
            raise AssertionError(f"the process died of {question}:\n{self._errors.read()[-2000:]}")
        return list(json.loads(answer))


def _numbers(result: Any) -> List[float]:
    if isinstance(result, dict):
        return [number for key in sorted(result) for number in _numbers(result[key])]
    if isinstance(result, list):
        return [number for item in result for number in _numbers(item)]
    return [float(result)]


def _run(path: str, backend: str, folder: Optional[str], *arguments: str) -> Ran:
    import numpy as np
    import torch

    from ignite_ipu.emulator.device import device
    from ignite_ipu.errors import RunError
    from ignite_ipu.running import run_module, run_script
    from tests.freezing import freeze

    if "accelerate" in sys.modules:
        from tests.accelerate_state import forget

        forget()
    os.environ["IGNITE_IPU_BACKEND"] = "emulator" if backend == RUN else backend
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    before, substitutions, output, messages, error = device.counters(), [], io.StringIO(), io.StringIO(), ""
    # Also where the script configures logging.
    handler, logger = logging.StreamHandler(messages), logging.getLogger("ignite_ipu")
    logger.addHandler(handler)
    package = os.path.dirname(path) if os.path.basename(path) == "__main__.py" else ""
    with tempfile.TemporaryDirectory() as own, _started([package or path, *arguments], folder or own):
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(messages):
            try:
                name = os.path.basename(package)
                if backend == RUN and package:
                    run_module(name, arguments, substitutions=substitutions)
                elif backend == RUN:
                    run_script(path, arguments, substitutions=substitutions)
                elif package:
                    runpy.run_module(name, run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(path, run_name="__main__")
            except RunError as refusal:
                error = f"refused: {refusal}"
            except (Exception, SystemExit) as reason:
                error = traceback.format_exc() if getattr(reason, "code", True) else ""
    _turn_off()
    logger.removeHandler(handler)
    freeze()
    results = [line[len("RESULT ") :] for line in output.getvalue().splitlines() if line.startswith("RESULT ")]
    updates = (device.counters() - before).optimizer_updates
    result = json.loads((results or ["null"])[-1])
    return Ran(result, output.getvalue(), messages.getvalue(), error, updates, [str(each) for each in substitutions])


def _turn_off() -> None:
    """End the substitutes of a script that has imported `ignite_ipu.auto`, and let the next one import it anew."""
    auto = sys.modules.pop("ignite_ipu.auto", None)
    if auto is not None:
        auto.off()
        del sys.modules["ignite_ipu"].auto


def _compare(path: str, folder: Optional[str], *arguments: str) -> Ran:
    """Return the report of both runs of a script as output; as an error, if they differ."""
    import torch

    from ignite_ipu.parity.child import DEVICE, HOST, recorded
    from ignite_ipu.parity.comparison import compare
    from ignite_ipu.parity.report import as_text
    from tests.freezing import freeze

    request = {"updates": _UPDATES, "seed": 0, "everything": False, "keep_dropout": False, "config": {}}
    package = os.path.dirname(path) if os.path.basename(path) == "__main__.py" else ""
    name = os.path.basename(package) or path
    request.update(script=name, arguments=list(arguments), module=bool(package))
    records = {}
    for side, backend in ((HOST, "native"), (DEVICE, "emulator")):
        if "accelerate" in sys.modules:
            from tests.accelerate_state import forget

            forget()
        os.environ["IGNITE_IPU_BACKEND"] = backend
        with tempfile.TemporaryDirectory() as own, _started([package or path, *arguments], folder or own):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                records[side] = recorded({**request, "side": side})
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    _turn_off()
    freeze()
    ended = "; ".join(f"{side}: {record['ended']}" for side, record in records.items() if record["ended"])
    if ended:
        return Ran(None, "", "", ended, 0, [])
    parity = compare(records[HOST], records[DEVICE], 1e-3)
    return Ran(parity.counts(), as_text(parity), "", "" if parity.agrees else as_text(parity), parity.updates, [])


@contextlib.contextmanager
def _started(words: List[str], folder: str) -> Iterator[None]:
    """Have a script find its arguments and the modules beside it, as run from a folder, and leave no trace."""
    before, arguments, known, search = os.getcwd(), sys.argv, set(sys.modules), list(sys.path)
    environment = dict(os.environ)
    sys.argv, beside = words, os.path.dirname(words[0])
    sys.path.insert(0, beside)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        for name in os.environ.keys() - environment:
            del os.environ[name]
        os.environ.update(environment)
        sys.argv, sys.path[:] = arguments, search
        for name in set(sys.modules) - known:
            file = str(getattr(sys.modules[name], "__file__", ""))
            if file.startswith((beside, folder)) and not name.startswith("ignite_ipu"):
                del sys.modules[name]


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of a script's own processes is no answer
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        path, backend, *rest = json.loads(line)
        ran = _compare(path, *rest) if backend == PARITY else _run(path, backend, *rest)
        answers.write(json.dumps(ran) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
