"""Programs that are run: a script, or a module by its name as `python -m` runs it."""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import runpy
import sys
import tokenize
from typing import Iterator, NamedTuple, Optional, Sequence

from ignite_ipu.errors import UserError

__all__ = ["Main", "module_program", "script_program", "started"]


class Main(NamedTuple):
    """A program that has not started.

    Attributes:
        path: Its file.
        folder: Where its own modules lie: beside the script, or beside the package that holds the module.
        module: The module's dotted name; None for a script.
    """

    path: str
    folder: str
    module: Optional[str] = None

    def run(self) -> None:
        """Run it as `__main__`."""
        if self.module is None:
            runpy.run_path(self.path, run_name="__main__")
        else:
            runpy.run_module(self.module, run_name="__main__", alter_sys=True)


@contextlib.contextmanager
def started(first_argument: str, argv: Sequence[str], first_path: str) -> Iterator[None]:
    """Have `sys.argv` and `sys.path` as Python gives them to a program, and as they were afterwards."""
    arguments, paths = sys.argv, list(sys.path)
    sys.argv = [first_argument, *argv]
    sys.path[0] = first_path
    try:
        yield
    finally:
        sys.argv, sys.path[:] = arguments, paths


def script_program(path: str) -> Main:
    """Return a script as a program.

    Raises:
        UserError: There is no such script, or it is no text.
    """
    if os.path.isdir(path):
        raise UserError(f"{path!r} is a directory; name the script in it")
    if not os.path.isfile(path):
        raise UserError(f"there is no script {path!r}")
    _refuse_binary(path)
    return Main(path, os.path.dirname(os.path.abspath(path)))


def module_program(name: str) -> Main:
    """Return a module, or the `__main__` of a package, as a program; nothing is imported to find it.

    Raises:
        UserError: It is not found on `sys.path`, or it is no text.
    """
    first, *below = name.split(".")
    top = spec = _find(first, None)
    for part in below:
        spec = _below(spec, part)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _below(spec, "__main__")
        if spec is None:
            raise UserError(f"{name!r} is a package without a __main__; name a module in it, as in -m {name}.train")
    if top is None or spec is None or spec.origin is None:
        way_out = f"name it without the suffix: -m {name[:-3]}" if name.endswith(".py") else "start where it lies"
        raise UserError(f"there is no module {name!r} on Python's path, which begins with {sys.path[0]!r}; {way_out}")
    _refuse_binary(spec.origin)
    outermost = next(iter(top.submodule_search_locations or ()), top.origin or "")
    return Main(spec.origin, os.path.dirname(os.path.abspath(outermost)), name)


def _find(name: str, locations: Optional[Sequence[str]]) -> Optional[importlib.machinery.ModuleSpec]:
    try:
        return importlib.machinery.PathFinder.find_spec(name, locations)
    except (ImportError, ValueError):
        return None


def _below(package: Optional[importlib.machinery.ModuleSpec], name: str) -> Optional[importlib.machinery.ModuleSpec]:
    if package is None or package.submodule_search_locations is None:
        return None
    return _find(name, list(package.submodule_search_locations))


def _refuse_binary(path: str) -> None:
    """Refuse what cannot be Python's text; a mistake in it is Python's to show."""
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
