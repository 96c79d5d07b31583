"""Programs that are run: a script, or a module by its name as `python -m` runs it; and their imports.

Nothing is imported to find out.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.machinery
import os
import re
import runpy
import sys
import tokenize
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set

from ignite_ipu.errors import UserError
from ignite_ipu.program.reached import reached
from ignite_ipu.program.user_code import Owner, owner_of
from ignite_ipu.running.notebook import SUFFIX, cells_of, is_python, run_notebook

_IMPORT = re.compile(rb"^[ \t]*(?:import|from)[ \t]+poptorch\b", re.MULTILINE)
# Their own code is known, and large.
_NOT_BUILT_ON_IT = frozenset({"accelerate", "ignite", "ignite_ipu", "numpy", "poptorch", "torch"})


class Main(NamedTuple):
    """A program that has not started: a script's file, a notebook's, or a module's with its dotted name.

    Its own modules lie in `folder`: beside the script, or beside the package that holds the module. In an installed
    package's folder, which is that of all packages, its own are those of the package.
    """

    path: str
    folder: str
    module: Optional[str] = None

    @property
    def package(self) -> Optional[str]:
        """Folder of the installed package that the module is of; None for a program that is the user's."""
        if self.module is None or owner_of(self.path) is not Owner.INSTALLED:
            return None
        return os.path.join(self.folder, self.module.partition(".")[0]) + os.sep

    def owns(self, module: str) -> bool:
        """Return whether a module in the program's folder is its own: of an installed package, those in it are."""
        return self.package is None or module.partition(".")[0] == str(self.module).partition(".")[0]

    def run(self, name: str = "__main__") -> Dict[str, Any]:
        """Run the program as a module of a name, and return the names in it; none of a notebook."""
        if self.path.endswith(SUFFIX):
            run_notebook(self.path)
            return {}
        if self.module is None:
            return runpy.run_path(self.path, run_name=name)
        return runpy.run_module(self.module, run_name=name, alter_sys=True)


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
    """Return a script as a program; raises `UserError` where there is no such script, or it is no text."""
    if os.path.isdir(path):
        raise UserError(f"{path!r} is a directory; name the script in it")
    if not os.path.isfile(path):
        raise UserError(f"there is no script {path!r}")
    _refuse_binary(path)
    return Main(path, os.path.dirname(os.path.abspath(path)))


def module_program(name: str) -> Main:
    """Return a module, or a package's `__main__`, as a program; not on `sys.path`, or no text, it is a `UserError`."""
    specs = _module_specs(name)
    spec = specs[-1] if len(specs) == name.count(".") + 1 else None
    if spec is not None and spec.submodule_search_locations is not None:
        main = _module_specs(f"{name}.__main__")
        if len(main) == len(specs):
            raise UserError(f"{name!r} is a package without a __main__; name a module in it, as in -m {name}.train")
        spec = main[-1]
    if spec is None or spec.origin is None:
        way_out = f"name it without the suffix: -m {name[:-3]}" if name.endswith(".py") else "start where it lies"
        raise UserError(f"there is no module {name!r} on Python's path, which begins with {sys.path[0]!r}; {way_out}")
    _refuse_binary(spec.origin)
    outermost = next(iter(specs[0].submodule_search_locations or ()), specs[0].origin or "")
    return Main(spec.origin, os.path.dirname(os.path.abspath(outermost)), name)


def _module_specs(name: str) -> List[importlib.machinery.ModuleSpec]:
    """Return Python's specs for the parts of a dotted name, up to the first that is not found."""
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
    """Refuse files that cannot be Python's text; Python reports mistakes in it."""
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


def uses_poptorch(program: Main) -> bool:
    """Return whether a program is for IPUs already, itself or by a package that it imports."""
    return imports(program, "poptorch") or any_built_on_poptorch(_all_imports(program))


def imports(program: Main, package: str) -> bool:
    """Return whether a program, or a module of its own that it imports, imports a package."""
    return not is_beside(program.folder, package) and any(
        name.split(".")[0] == package for name in _all_imports(program)
    )


def is_beside(folder: str, module: str) -> bool:
    """Return whether a program's folder has a module of this name, which Python imports in the place of others."""
    return os.path.isfile(os.path.join(folder, f"{module}.py"))


def _all_imports(program: Main) -> Set[str]:
    """Return the imports of a program and of its own modules."""
    found: Set[str] = set()

    def imported_by(file: str) -> Iterator[str]:
        names = _imports(file, program.folder)
        found.update(names)
        for name in filter(program.owns, names):
            yield from _files_of(program.folder, name)

    reached([os.path.abspath(program.path), *_files_of(program.folder, program.module or "")], imported_by)
    return found


def _files_of(folder: str, name: str) -> List[str]:
    """Return the files below a folder that importing a module runs: its own, and those of the packages around it."""
    parts = name.split(".")
    bases = [os.path.join(folder, *parts[:count]) for count in range(1, len(parts) + 1)]
    places = [f"{bases[-1]}.py", *(os.path.join(base, "__init__.py") for base in bases)]
    return [place for place in places if os.path.isfile(place)]


def _imports(file: str, folder: str) -> Set[str]:
    try:
        tree = ast.Module([node for text in _texts(file) for node in ast.parse(text).body], [])
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return set()  # running it shows the error
    names: Set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = _package_of(file, folder, node.level) + (node.module.split(".") if node.module else [])
            names.add(".".join(parts))
            names.update(".".join([*parts, alias.name]) for alias in node.names)
    return names


def _texts(file: str) -> Iterator[str]:
    """Yield the text of a script, or of the cells of a notebook that are plain Python."""
    if file.endswith(SUFFIX):
        yield from (cell for cell in cells_of(file) if is_python(cell))
    else:
        with tokenize.open(file) as opened:
            yield opened.read()


def _package_of(file: str, folder: str, level: int) -> List[str]:
    """Return the parts of the package that a relative import of this level in a file starts from; none for level 0."""
    if level == 0:
        return []
    inside = os.path.relpath(os.path.dirname(file), folder)
    parts = [] if inside == os.curdir else inside.split(os.sep)
    return parts[: len(parts) - level + 1]


def mentions_poptorch(file: str) -> bool:
    """Return whether a file's own text imports `poptorch`."""
    with contextlib.suppress(OSError), open(file, "rb") as opened:
        text = opened.read()
        return b"poptorch" in text and _IMPORT.search(text) is not None
    return False


def any_built_on_poptorch(modules: Iterable[str]) -> bool:
    """Return whether the source of one of these modules of installed packages, or of one below it, imports `poptorch`.

    A last part of a dotted name that is no module is taken as a name defined in the one before.
    """
    places = {_place(module) for module in modules if module.split(".")[0] not in _NOT_BUILT_ON_IT}
    return any(_imports_poptorch(place) for place in places if place is not None)


def _place(module: str) -> Optional[str]:
    """Return the directory or the file of a module outside the standard library."""
    specs = _module_specs(module)
    place = next(iter(specs[-1].submodule_search_locations or ()), specs[-1].origin) if specs else None
    return None if place is None or owner_of(place) is Owner.PYTHON else place


def _imports_poptorch(place: str) -> bool:
    below = [os.path.join(folder, file) for folder, _, files in os.walk(place) for file in files]
    return any(map(mentions_poptorch, (place, *(file for file in below if file.endswith(".py")))))
