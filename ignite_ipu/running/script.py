"""`run_script`: one unmodified script, run as `python script.py` would, on IPUs."""

from __future__ import annotations

import ast
import concurrent.futures.thread
import contextlib
import os
import runpy
import sys
import threading
import tokenize
from typing import Any, Iterator, List, Optional, Sequence, Set

from ignite_ipu import backend
from ignite_ipu.cli import UserError
from ignite_ipu.running.built_on_poptorch import any_built_on_poptorch
from ignite_ipu.running.errors import RunError
from ignite_ipu.running.journal import Journal, Substitution
from ignite_ipu.running.ownership import ScriptCode
from ignite_ipu.running.patches import Patches

__all__ = ["imports", "run_script"]


def run_script(
    path: str,
    argv: Sequence[str] = (),
    *,
    replication_factor: Optional[int] = None,
    substitutions: Optional[List[Substitution]] = None,
) -> None:
    """Run a script as `__main__` on IPUs; what it changes in PyTorch and Ignite is changed back afterwards.

    A script that uses PopTorch, itself or by a package built on it, runs as it is, on the emulator where there is no
    SDK. With `IGNITE_IPU_BACKEND=native` every script runs as it is.

    Args:
        path: The script.
        argv: Its arguments.
        replication_factor: Replicas of the model to train with.
        substitutions: Gets what was substituted.

    Raises:
        RunError: Something in it cannot be mapped to IPUs; the message names the line.
        UserError: There is no such script, or it is no text.
        BaseException: What the script raises, `SystemExit` too.
    """
    _refuse_unreadable(path)
    with _as_program(path, argv):
        if backend.choice() == "native":
            runpy.run_path(path, run_name="__main__")
        elif imports(path, "poptorch") or any_built_on_poptorch(_all_imports(path)):
            _run_poptorch(path)
        else:
            _run_substituted(path, replication_factor, [] if substitutions is None else substitutions)


def _refuse_unreadable(path: str) -> None:
    """Refuse what cannot be a script; a mistake in its text is Python's to show."""
    if os.path.isdir(path):
        raise UserError(f"{path!r} is a directory; name the script in it")
    if not os.path.isfile(path):
        raise UserError(f"there is no script {path!r}")
    if path.endswith(".pyc"):
        return
    try:
        with tokenize.open(path) as opened:
            binary = "\0" in opened.read()
    except OSError as error:
        raise UserError(f"the script {path!r} cannot be read: {error.strerror}") from error
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UserError(f"{path!r} is not a Python script: {error}") from error
    if binary:
        raise UserError(f"{path!r} is not a Python script: it contains null bytes")


def imports(path: str, package: str) -> bool:
    """Tell whether a script, or a module beside it that it imports, imports a package.

    A module of that name beside the script is what Python imports then.
    """
    if os.path.isfile(os.path.join(os.path.dirname(os.path.abspath(path)), f"{package}.py")):
        return False
    return any(name.split(".")[0] == package for name in _all_imports(path))


def _all_imports(path: str) -> Iterator[str]:
    """Yield what a script and the modules beside it that it imports import."""
    waiting, seen = [os.path.abspath(path)], set()
    folder = os.path.dirname(waiting[0])
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        for name in sorted(_imports(file)):
            yield name
            base = os.path.join(folder, *name.split("."))
            waiting += [place for place in (f"{base}.py", os.path.join(base, "__init__.py")) if os.path.isfile(place)]


def _run_poptorch(path: str) -> None:
    from ignite_ipu.emulator.installation import install

    installed: Any = install(import_effects=True) if backend.is_emulator() else contextlib.nullcontext()
    with installed:
        runpy.run_path(path, run_name="__main__")


def _run_substituted(path: str, replication_factor: Optional[int], substitutions: List[Substitution]) -> None:
    from ignite_ipu.running.accelerators import substitute_accelerator
    from ignite_ipu.running.averages import substitute_averages
    from ignite_ipu.running.cuda import substitute_cuda
    from ignite_ipu.running.devices import substitute_devices
    from ignite_ipu.running.engine_weights import EngineWeights
    from ignite_ipu.running.exports import substitute_exports
    from ignite_ipu.running.gpu_types import substitute_gpu_types
    from ignite_ipu.running.ignite_engines import substitute_ignite
    from ignite_ipu.running.loops import substitute_loops
    from ignite_ipu.running.precision import substitute_precision
    from ignite_ipu.running.refusals import refuse_unmappable

    # Says which PopTorch it is, and fails now if it does not import.
    backend.poptorch()
    code, journal, patches, trained = ScriptCode(path), Journal(), Patches(), EngineWeights()
    try:
        substitute_gpu_types(patches, code, journal)
        substitute_devices(patches, code, journal)
        substitute_cuda(patches, code, journal)
        substitute_precision(patches, code, journal)
        refuse_unmappable(patches, code, journal)
        substitute_exports(patches, code, journal)
        substitute_averages(patches, code, journal)
        substitute_ignite(patches, code, journal, trained, replication_factor)
        substitute_loops(patches, code, journal, trained, replication_factor)
        if imports(path, "accelerate"):
            substitute_accelerator(patches, code, journal, replication_factor)
        _run_with_its_threads(path)
    except RunError:
        raise
    except Exception as error:
        if journal.refusals:
            raise journal.refusals[0] from error
        if type(error).__module__.startswith(("ignite_ipu.", "poptorch")):
            raise _refusal(error, code) from error
        raise
    finally:
        patches.undo()
        substitutions += journal.substitutions
    if journal.refusals:
        raise journal.refusals[0]


def _run_with_its_threads(path: str) -> None:
    """Run a script to its end, which natively is that of its threads, too: one may be training still."""
    before = set(threading.enumerate())
    try:
        runpy.run_path(path, run_name="__main__")
    finally:
        started = _threads_of_its_own(before)
        while started:
            for thread in started:
                thread.join()
            started = _threads_of_its_own(before)


def _threads_of_its_own(before: Set[threading.Thread]) -> List[threading.Thread]:
    """Return the running threads that the interpreter's end would wait for, and not end itself, as an executor's."""
    pooled = concurrent.futures.thread._threads_queues
    return [thread for thread in threading.enumerate() if not (thread in before or thread.daemon or thread in pooled)]


def _refusal(error: Exception, code: ScriptCode) -> RunError:
    """Return what the shim or PopTorch refused, with the script's line."""
    line, trace = None, error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if code.owns(file):
            line = (file, trace.tb_lineno)
        trace = trace.tb_next
    text = str(error)
    return RunError(None if line is not None and f"{line[0]}:{line[1]}" in text else line, text)


@contextlib.contextmanager
def _as_program(path: str, argv: Sequence[str]) -> Iterator[None]:
    arguments, paths = sys.argv, list(sys.path)
    sys.argv = [path, *argv]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = arguments, paths


def _imports(file: str) -> Set[str]:
    try:
        with tokenize.open(file) as opened:
            tree = ast.parse(opened.read())
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return set()  # running it says what is wrong
    names: Set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names
