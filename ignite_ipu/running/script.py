"""`run_script` and `run_module`: one unmodified program, run as `python` and `python -m` would, on IPUs."""

from __future__ import annotations

import concurrent.futures.thread
import importlib.util
import os
import threading
import traceback
from typing import List, Optional, Sequence, Set

from ignite_ipu import backend
from ignite_ipu.errors import RunError, UserError
from ignite_ipu.program.config import Configuration, IPUConfig
from ignite_ipu.running.patches import Substitutes
from ignite_ipu.running.program import Main, is_beside, module_program, script_program, started, uses_poptorch
from ignite_ipu.running.script_code import ScriptCode, Substitution


def run_script(
    path: str,
    argv: Sequence[str] = (),
    *,
    config: Configuration = None,
    substitutions: Optional[List[Substitution]] = None,
) -> None:
    """Run a script as `__main__` on IPUs; what it changes in PyTorch and Ignite is changed back afterwards.

    A script that uses PopTorch, itself or by a package built on it, runs as it is, on the emulator where there is no
    SDK. With `IGNITE_IPU_BACKEND=native` every script runs as it is.

    Args:
        path: The script.
        argv: Its arguments.
        config: Settings that trainers, accelerators and loops take: an `IPUConfig`, a mapping or the path of a file.
        substitutions: Gets what was substituted.

    Raises:
        OptionsError: The config cannot be read.
        RunError: Something in it cannot be mapped to IPUs; the message names the line.
        UserError: There is no such script, or it is no text.
        BaseException: What the script raises, `SystemExit` too.
    """
    program = script_program(path)
    with started(path, argv, program.folder):
        _run(program, config, [] if substitutions is None else substitutions)


def run_module(
    name: str,
    argv: Sequence[str] = (),
    *,
    config: Configuration = None,
    substitutions: Optional[List[Substitution]] = None,
) -> None:
    """Run a module, or the `__main__` of a package, as `python -m` does; else as `run_script`.

    Args:
        name: Its dotted name, to be found from the current directory or on `sys.path`.
        argv, config, substitutions: As for `run_script`.

    Raises:
        OptionsError: The config cannot be read.
        RunError: Something in it cannot be mapped to IPUs; the message names the line.
        UserError: There is no such module, or it is no text.
        BaseException: What the module raises, `SystemExit` too.
    """
    # Python's own first argument, too, is this until the module is found and its packages are imported.
    with started("-m", argv, os.getcwd()):
        _run(module_program(name), config, [] if substitutions is None else substitutions)


def _run(program: Main, config: Configuration, substitutions: List[Substitution]) -> None:
    if backend.choice() == "native":
        program.run()
    elif uses_poptorch(program):
        settings = IPUConfig.of(config)
        if settings.said():
            raise UserError(
                f"{program.path} uses PopTorch itself, so that {settings!r} would have no effect. Set its "
                "poptorch.Options in the program, or by POPTORCH_DEFAULT_OPTIONS, and leave the settings out."
            )
        with backend.installed():
            program.run()
    else:
        _run_substituted(program, IPUConfig.of(config), substitutions)


def _run_substituted(program: Main, config: IPUConfig, substitutions: List[Substitution]) -> None:
    from ignite_ipu.running.substitutes.cuda import substitute_cuda
    from ignite_ipu.running.substitutes.devices import substitute_devices
    from ignite_ipu.running.substitutes.gradients import EngineWeights
    from ignite_ipu.running.substitutes.host_runs import substitute_averages, substitute_exports
    from ignite_ipu.running.substitutes.ignite_engines import substitute_ignite
    from ignite_ipu.running.substitutes.loops import substitute_loops
    from ignite_ipu.running.substitutes.parallel import substitute_parallel
    from ignite_ipu.running.substitutes.refusals import refuse_unmappable, substitute_precision

    # Says which PopTorch it is, and fails now if it does not import.
    backend.poptorch()
    code, trained = ScriptCode(program.path), EngineWeights()
    substitutes = Substitutes(code)
    refusals = substitutes.refusals
    try:
        substitute_devices(substitutes)
        substitute_cuda(substitutes)
        substitute_precision(substitutes)
        refuse_unmappable(substitutes)
        substitute_parallel(substitutes)
        substitute_exports(substitutes)
        substitute_averages(substitutes)
        substitute_ignite(substitutes, trained, config)
        # The script, or a package whose loops it runs, may import it at any time.
        accelerates = not is_beside(program, "accelerate") and importlib.util.find_spec("accelerate") is not None
        substitute_loops(substitutes, trained, config, accelerates)
        _run_with_its_threads(program)
    except RunError:
        raise
    except Exception as error:
        if refusals:
            raise refusals[0] from error
        if type(error).__module__.startswith(("ignite_ipu.", "poptorch")):
            raise _refusal(error, code) from error
        raise
    finally:
        substitutes.undo()
        substitutions += substitutes.substitutions
    if refusals:
        raise refusals[0]


def _run_with_its_threads(program: Main) -> None:
    """Run a program to its end, which natively is that of its threads, too: one may be training still."""
    before = set(threading.enumerate())
    try:
        program.run()
    finally:
        running = _threads_of_its_own(before)
        while running:
            for thread in running:
                thread.join()
            running = _threads_of_its_own(before)


def _threads_of_its_own(before: Set[threading.Thread]) -> List[threading.Thread]:
    """Return the running threads that the interpreter's end would wait for, and not end itself, as an executor's."""
    pooled = concurrent.futures.thread._threads_queues
    return [thread for thread in threading.enumerate() if not (thread in before or thread.daemon or thread in pooled)]


def _refusal(error: Exception, code: ScriptCode) -> RunError:
    """Return what the shim or PopTorch refused, with the script's line."""
    passed = ((frame.f_code.co_filename, number) for frame, number in traceback.walk_tb(error.__traceback__))
    own = [place for place in passed if code.owns(place[0])]
    line = own[-1] if own else None
    text = str(error)
    return RunError(None if line is not None and f"{line[0]}:{line[1]}" in text else line, text)
