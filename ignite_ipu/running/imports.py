"""Imports of a program and of its own modules, and whether one of them is built on PopTorch; nothing is imported."""

from __future__ import annotations

import ast
import os
import re
import tokenize
from typing import Iterable, Iterator, List, Optional, Set

from ignite_ipu.program.user_code import Owner, owner_of
from ignite_ipu.running.program import Main, module_specs

__all__ = ["any_built_on_poptorch", "imports", "is_beside", "uses_poptorch"]

_IMPORT = re.compile(rb"^[ \t]*(?:import|from)[ \t]+poptorch\b", re.MULTILINE)
# Their own code is known, and large.
_NOT_BUILT_ON_IT = frozenset({"accelerate", "ignite", "ignite_ipu", "numpy", "poptorch", "torch"})


def uses_poptorch(program: Main) -> bool:
    """Tell whether a program is for IPUs already, itself or by a package that it imports."""
    return imports(program, "poptorch") or any_built_on_poptorch(_all_imports(program))


def imports(program: Main, package: str) -> bool:
    """Tell whether a program, or a module of its own that it imports, imports a package."""
    return not is_beside(program, package) and any(name.split(".")[0] == package for name in _all_imports(program))


def is_beside(program: Main, module: str) -> bool:
    """Tell whether a module of this name lies beside a program, which Python imports in the place of others."""
    return os.path.isfile(os.path.join(program.folder, f"{module}.py"))


def _all_imports(program: Main) -> Iterator[str]:
    """Yield what a program and its own modules that it imports import."""
    waiting = [os.path.abspath(program.path), *_files_of(program.folder, program.module or "")]
    seen: Set[str] = set()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        for name in sorted(_imports(file, program.folder)):
            yield name
            waiting += _files_of(program.folder, name)


def _files_of(folder: str, name: str) -> List[str]:
    """Return the files below a folder that importing a module runs: its own, and those of the packages around it."""
    parts = name.split(".")
    bases = [os.path.join(folder, *parts[:count]) for count in range(1, len(parts) + 1)]
    places = [f"{bases[-1]}.py", *(os.path.join(base, "__init__.py") for base in bases)]
    return [place for place in places if os.path.isfile(place)]


def _imports(file: str, folder: str) -> Set[str]:
    try:
        with tokenize.open(file) as opened:
            tree = ast.parse(opened.read())
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return set()  # running it says what is wrong
    names: Set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = _package_of(file, folder, node.level) + (node.module.split(".") if node.module else [])
            names.add(".".join(parts))
            names.update(".".join([*parts, alias.name]) for alias in node.names)
    return names


def _package_of(file: str, folder: str, level: int) -> List[str]:
    """Return the parts of the package that a relative import of this level in a file starts from; none for level 0."""
    if level == 0:
        return []
    inside = os.path.relpath(os.path.dirname(file), folder)
    parts = [] if inside == os.curdir else inside.split(os.sep)
    return parts[: len(parts) - level + 1]


def any_built_on_poptorch(modules: Iterable[str]) -> bool:
    """Tell whether the source of one of these modules of installed packages, or of one below it, imports `poptorch`.

    Args:
        modules: Dotted names. A last part that is no module is taken as a name defined in the one before.
    """
    places = {_place(module) for module in modules if module.split(".")[0] not in _NOT_BUILT_ON_IT}
    return any(_imports_poptorch(file) for place in places if place is not None for file in _sources(place))


def _place(module: str) -> Optional[str]:
    """Return the directory or the file of a module outside the standard library."""
    specs = module_specs(module)
    place = next(iter(specs[-1].submodule_search_locations or ()), specs[-1].origin) if specs else None
    return None if place is None or owner_of(place) is Owner.PYTHON else place


def _sources(place: str) -> Iterator[str]:
    if os.path.isfile(place):
        yield place
    for folder, _, files in os.walk(place):
        yield from (os.path.join(folder, file) for file in files if file.endswith(".py"))


def _imports_poptorch(file: str) -> bool:
    try:
        with open(file, "rb") as opened:
            text = opened.read()
    except OSError:
        return False
    return b"poptorch" in text and _IMPORT.search(text) is not None
