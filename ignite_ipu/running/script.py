"""`run_script` and `run_module`: one unmodified program, run as `python` and `python -m` would, on IPUs."""

from __future__ import annotations

import concurrent.futures.thread
import os
import threading
from typing import List, Optional, Sequence, Set

from ignite_ipu import backend
from ignite_ipu.errors import UserError
from ignite_ipu.launched import describe_to_torch
from ignite_ipu.program.config import Configuration, IPUConfig
from ignite_ipu.running.program import Main, module_program, script_program, started, uses_poptorch
from ignite_ipu.running.script_code import ScriptCode, Substitution
from ignite_ipu.running.spawned import ProcessSpawner
from ignite_ipu.running.substituted import refusal_behind, substitute


def run_script(
    path: str,
    argv: Sequence[str] = (),
    *,
    config: Configuration = None,
    substitutions: Optional[List[Substitution]] = None,
) -> None:
    """Run a script as `__main__` on IPUs; changes of PyTorch and Ignite are undone afterwards.

    A script that uses PopTorch, itself or by a package built on it, runs as it is, on the emulator where there is no
    SDK. With `IGNITE_IPU_BACKEND=native` every script runs as it is.

    Args:
        path: The script.
        argv: Its arguments.
        config: Settings that trainers, accelerators and loops take: an `IPUConfig`, a mapping or the path of a file.
        substitutions: Gets the substitutions.

    Raises:
        OptionsError: The config cannot be read.
        RunError: Something in it cannot be mapped to IPUs; the message names the line.
        UserError: There is no such script, or it is no text.
        BaseException: Any exception of the script, `SystemExit` too.
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
        BaseException: Any exception of the module, `SystemExit` too.
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
    describe_to_torch()
    code = ScriptCode(program.path, program.package)
    substitutes = substitute(code, program.folder, config, spawner=ProcessSpawner(program, config))
    try:
        _run_with_its_threads(program)
    except Exception as error:
        refusal = refusal_behind(error, substitutes)
        if refusal is None:
            raise
        raise refusal from error
    finally:
        substitutes.undo()
        substitutions += substitutes.substitutions
    if substitutes.refusals:
        raise substitutes.refusals[0]


def _run_with_its_threads(program: Main) -> None:
    """Run a program to its end, which in Python is that of its threads, too: one may be training still."""
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
