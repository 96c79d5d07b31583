"""`import ignite_ipu.auto`: the GPU program of this process runs on IPUs, as `ignite-ipu run` runs a script.

The import stands at the top of a script, a test or a notebook, or in a module that `torchrun`, `accelerate launch`,
`python -m` or a job scheduler starts. `IGNITE_IPU_AUTO=1` in the environment does the same for a program without the
line: PyTorch 2.5 and later load it with `import torch`. Models and optimizers that exist by then are captured, too.

With `IGNITE_IPU_BACKEND=native` the import does nothing; neither in a process that `ignite-ipu run` has started, nor in
workers of data loaders. In a program that imports PopTorch itself, it only gives the emulator PopTorch's name, if there
is no SDK.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import multiprocessing
import os
import sys
from typing import Any, Iterator, List, Optional

from ignite_ipu import backend
from ignite_ipu.errors import OptionsError
from ignite_ipu.program.config import Configuration, IPUConfig
from ignite_ipu.running.program import mentions_poptorch
from ignite_ipu.running.refusal_display import RefusalDisplay
from ignite_ipu.running.script_code import ScriptCode, Substitution
from ignite_ipu.running.substituted import is_substituted, refusal_behind, substitute

__all__ = ["configure", "enabled", "is_on", "off", "on", "substitutions", "traceback"]


class _Process:
    """The substitutes of this process, and how it shows refusals."""

    def __init__(self, main: Optional[str], config: IPUConfig) -> None:
        folder = os.getcwd() if main is None else os.path.dirname(os.path.abspath(main))
        self.substitutes = substitute(ScriptCode(main), folder, config, late=True)
        self.display = RefusalDisplay(self._refusal)
        atexit.register(off)

    def _refusal(self, error: BaseException) -> BaseException:
        return refusal_behind(error, self.substitutes) or error

    def end(self) -> None:
        atexit.unregister(off)
        self.display.close(self.substitutes.refusals)
        self.substitutes.undo()


_process: Optional[_Process] = None


def on(config: Configuration = None) -> None:
    """Run the training and evaluation of this process on IPUs from this call on; does nothing if it is on already.

    Args:
        config: Settings of trainers, accelerators and loops: an `IPUConfig`, a mapping, or the path of a file. None
            takes those of `IGNITE_IPU_CONFIG`.

    Raises:
        BackendError: The PopTorch that is demanded does not import.
        OptionsError: The settings cannot be read.
        RunError: The program has made an object that can no longer be captured; the message names it.
    """
    global _process
    if backend.choice() == "native" or is_substituted() or multiprocessing.current_process().daemon:
        return
    main = getattr(sys.modules["__main__"], "__file__", None)
    if main is not None and mentions_poptorch(main):
        backend.installed().__enter__()
        return
    _process = _Process(main, IPUConfig.from_environment() if config is None else IPUConfig.of(config))


def off() -> None:
    """Restore PyTorch, Ignite and accelerate, and release captured models with their current weights."""
    global _process
    process, _process = _process, None
    if process is not None:
        process.end()


def is_on() -> bool:
    """Return whether this process runs on IPUs by `ignite_ipu.auto` or `ignite-ipu run`."""
    return is_substituted()


def configure(config: Configuration = None, **settings: Any) -> None:
    """Set how trainers, accelerators and loops run; before the first model is captured.

    Args:
        config: As for `on`.
        settings: Settings of `IPUConfig` by name, which replace those of `config`.

    Raises:
        OptionsError: There is no such setting, a model was captured with other settings, or `ignite-ipu run` has set
            them.
    """
    chosen = dataclasses.replace(IPUConfig.of(config), **IPUConfig.from_dict(settings).said())
    if _process is None and is_substituted():
        raise OptionsError("ignite-ipu run has started this program: its settings are those of the command line.")
    if _process is not None and _process.substitutes.settings_are_used:
        raise OptionsError(
            "A model or an engine has been captured with other settings. Call ignite_ipu.auto.configure() before the "
            "first model is called, or call ignite_ipu.auto.off() before it."
        )
    off()
    on(chosen)


@contextlib.contextmanager
def enabled(config: Configuration = None) -> Iterator[List[Substitution]]:
    """Context manager that runs its block on IPUs, for a test; yields the substitutions as they are made."""
    was_on = is_on()
    on(config)
    try:
        yield substitutions() if _process is None else _process.substitutes.substitutions
    finally:
        if not was_on:
            off()


def substitutions() -> List[Substitution]:
    """Return the calls that meant something else on IPUs so far, each with its line."""
    return [] if _process is None else list(_process.substitutes.substitutions)


def traceback() -> None:
    """Print the last refusal with all its frames; notebooks and terminals show the program's own."""
    if _process is not None:
        _process.display.print_last()


def load_ipython_extension(shell: Any) -> None:
    """Turn this on in a notebook: `%load_ext ignite_ipu`."""
    on()


def unload_ipython_extension(shell: Any) -> None:
    """Turn this off: `%unload_ext ignite_ipu`."""
    off()


on()
