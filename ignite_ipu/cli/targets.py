"""`MODULE:FACTORY`, the way to name a model to a command: a function without arguments that makes it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from typing import Any, Callable, Iterator

from ignite_ipu.errors import UserError


def load_factory(target: str) -> Callable[[], Any]:
    """Import a module or a `.py` file and return the function; this runs the user's code, with its exceptions.

    A target is `my_model:make` or `my_model.py:make`. Another form is a `UserError`, and so is one of which there is no
    such module, file or function.
    """
    path, _, name = target.rpartition(":")
    if not path or not name:
        raise UserError(f"{target!r} is not of the form MODULE:FACTORY, such as my_model:make or my_model.py:make")
    factory = getattr(_load(path), name, None)
    if not callable(factory):
        raise UserError(f"{path} has no function {name!r}")
    return factory  # type: ignore[no-any-return]


@contextlib.contextmanager
def blamed_on(target: str) -> Iterator[None]:
    """Turn exceptions of a target's module and function, and the end of the process, into the user's error."""
    try:
        yield
    except UserError:
        raise
    except SystemExit as error:
        raise UserError(f"{target} ends the process, with exit code {error.code!r}, before it gives a model") from error
    except Exception as error:
        raise UserError(f"{target} failed: {type(error).__name__}: {error}") from error


def _load(path: str) -> Any:
    if path.endswith(".py"):
        if not os.path.isfile(path):
            raise UserError(f"there is no file {path!r}")
        name = os.path.basename(path)[:-3]
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        spec.loader.exec_module(module)
        return module
    # The command's own directory, not the caller's, is where Python looks first.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not (path == error.name or path.startswith(f"{error.name}.")):
            raise
        raise UserError(f"there is no module {path!r}; a file needs its .py ending") from error
