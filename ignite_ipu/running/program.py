"""Programs that are run: a script, or a module by its name as `python -m` runs it."""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import runpy
import sys
import tokenize
from typing import Iterator, List, NamedTuple, Optional, Sequence

from ignite_ipu.errors import UserError

__all__ = ["Main", "module_program", "module_specs", "script_program", "started"]


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
    specs = module_specs(name)
    spec = specs[-1] if len(specs) == name.count(".") + 1 else None
    if spec is not None and spec.submodule_search_locations is not None:
        main = module_specs(f"{name}.__main__")
        if len(main) == len(specs):
            raise UserError(f"{name!r} is a package without a __main__; name a module in it, as in -m {name}.train")
        spec = main[-1]
    if spec is None or spec.origin is None:
        way_out = f"name it without the suffix: -m {name[:-3]}" if name.endswith(".py") else "start where it lies"
        raise UserError(f"there is no module {name!r} on Python's path, which begins with {sys.path[0]!r}; {way_out}")
    _refuse_binary(spec.origin)
    outermost = next(iter(specs[0].submodule_search_locations or ()), specs[0].origin or "")
    return Main(spec.origin, os.path.dirname(os.path.abspath(outermost)), name)


def module_specs(name: str) -> List[importlib.machinery.ModuleSpec]:
    """Return what Python finds for each part of a dotted name, as far as it finds any; nothing is imported."""
    found: List[importlib.machinery.ModuleSpec] = []
    locations: Optional[List[str]] = None
    for part in name.split("."):
        try:
            spec = importlib.machinery.PathFinder.find_spec(part, locations)
        except (ImportError, ValueError):
            break
        if spec is None:
            break
        found.append(spec)
        locations = list(spec.submodule_search_locations or ())
    return found


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
