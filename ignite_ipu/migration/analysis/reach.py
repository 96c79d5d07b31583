"""Files of a code base that a file imports, itself or by way of others; nothing is run for it."""

from __future__ import annotations

import ast
import os
import re
from typing import Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Set, Tuple

from ignite_ipu.migration.analysis.names import constant, dotted
from ignite_ipu.program.reached import reached

# A place in a format, behind which the literal part of a name ends.
_PLACE = re.compile(r"[{%]")
# How many dots an import begins with, and the module's dotted name; one that ends in ".*" stands for all that follows.
Import = Tuple[int, str]


IMPORTS = (ast.Import, ast.ImportFrom, ast.Call)
"""Classes of the nodes that may import."""


def imports_of(nodes: Iterable[ast.AST]) -> FrozenSet[Import]:
    """Return the imports among a file's nodes of the classes `IMPORTS`: by statements, and by `import_module`."""
    return frozenset(found for node in nodes for found in _imports(node))


def _imports(node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from ((0, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield node.level, node.module or ""
        yield from ((node.level, f"{node.module or ''}.{alias.name}".strip(".")) for alias in node.names)
    elif isinstance(node, ast.Call) and (dotted(node.func) or "").split(".")[-1] in ("import_module", "__import__"):
        # import_module(f"models.{name}") may import whatever is in the package.
        text = node.args[0] if node.args else None
        name = _beginning(text)
        if isinstance(name, str):
            level = len(name) - len(name.lstrip("."))
            whole = isinstance(text, ast.Constant)
            yield level, name[level:] if whole else f"{_PLACE.split(name[level:])[0].rpartition('.')[0]}.*"


def _beginning(text: Optional[ast.expr]) -> object:
    """Return the literal that a text begins with: an f-string, a sum, or one with `%` or `format`."""
    if isinstance(text, ast.JoinedStr):
        return constant(text.values[0]) if text.values else None
    if isinstance(text, ast.BinOp):
        return _beginning(text.left)
    if isinstance(text, ast.Call) and isinstance(text.func, ast.Attribute) and text.func.attr == "format":
        return constant(text.func.value)
    return constant(text)


class CodeBase:
    """Files that may import one another.

    A module is looked for as Python does when the root of the code base, or `src`, is on its path. These are the
    folders on the way up from the importing file, and the folders beside these that are no packages.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._files = set(paths)
        folders = {folder for path in self._files for folder in _above(path)}
        # A package need not have an __init__.py.
        self._paths = folders | {path[:-3] for path in self._files if path.endswith(".py")}
        self._names = {os.path.basename(module) for module in self._paths}
        self._roots: Dict[str, List[str]] = {}
        for folder in sorted(folders):
            if os.path.join(folder, "__init__.py") not in self._files:
                self._roots.setdefault(os.path.dirname(folder), []).append(folder)

    def reached(self, imports: Mapping[str, Iterable[Import]]) -> Dict[str, Set[str]]:
        """Return for each file those that it imports, itself or by way of others."""
        direct = {path: {*self._direct(path, named), *self._packages(path)} for path, named in imports.items()}
        return {path: set(reached(own, lambda each: direct.get(each, ()))) for path, own in direct.items()}

    def _direct(self, path: str, imports: Iterable[Import]) -> Iterator[str]:
        for level, name in imports:
            inside = name.endswith(".*")
            module = self._find(path, level, name[:-2] if inside else name)
            if module is not None:
                yield from self._files.intersection((f"{module}.py", os.path.join(module, "__init__.py")))
                if inside:
                    yield from (file for file in self._files if file.startswith(module + os.sep))

    def _find(self, path: str, level: int, name: str) -> Optional[str]:
        """Return the place of a module, which may be in a part of the name's beginning; None for a library's."""
        parts = name.split(".") if name else []
        folders = list(_above(path))
        if level:
            roots = folders[level - 1 : level]
        elif parts and parts[0] in self._names:
            roots = [root for folder in folders for root in (folder, *self._roots.get(folder, ()))]
        else:
            return None
        for count in range(len(parts), -1 if level else 0, -1):
            for root in roots:
                place = os.path.join(root, *parts[:count])
                if place in self._paths:
                    return place
        return None

    def _packages(self, path: str) -> Iterator[str]:
        """Yield the `__init__.py` of the packages that a file is in, which run before it."""
        for folder in _above(path):
            package = os.path.join(folder, "__init__.py")
            if package not in self._files:
                return
            yield package


def _above(path: str) -> Iterator[str]:
    """Yield the folders that a path is in, innermost first."""
    while os.path.dirname(path) != path:
        path = os.path.dirname(path)
        yield path
