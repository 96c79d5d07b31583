"""Files of a code base that a file imports, itself or by way of others; nothing is run for it."""

from __future__ import annotations

import ast
import os
from typing import Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Set, Tuple

from ignite_ipu.migration.analysis.names import constant, dotted

# How many dots an import begins with, and the module's dotted name; one that ends in ".*" stands for all that follows.
Import = Tuple[int, str]


def imports_of(tree: ast.AST) -> FrozenSet[Import]:
    """Return what a file imports, by statements and by `import_module`."""
    return frozenset(found for node in ast.walk(tree) for found in _imports(node))


def _imports(node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from ((0, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield node.level, node.module or ""
        yield from ((node.level, f"{node.module or ''}.{alias.name}".strip(".")) for alias in node.names)
    elif isinstance(node, ast.Call) and (dotted(node.func) or "").split(".")[-1] in ("import_module", "__import__"):
        # import_module(f"models.{name}") may import whatever is in the package.
        text = node.args[0] if node.args else None
        parts = text.values if isinstance(text, ast.JoinedStr) else [getattr(text, "left", text)]
        name = constant(parts[0]) if parts else None
        if isinstance(name, str):
            level = len(name) - len(name.lstrip("."))
            whole = parts[0] is text
            yield level, name[level:] if whole else f"{name[level:].rpartition('.')[0]}.*"


class CodeBase:
    """Files that may import one another.

    A module is looked for as Python does when the root of the code base, or `src`, is on its path: from the folders on
    the way up from the file that imports it, and from the folders beside these that are no packages.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._modules: Dict[str, List[Tuple[str, Optional[str]]]] = {}
        self._files = set(paths)
        for path in sorted(self._files):
            stem, suffix = os.path.splitext(path)
            if suffix == ".py":
                module = os.path.dirname(stem) if os.path.basename(stem) == "__init__" else stem
                self._modules.setdefault(os.path.basename(module), []).append((module, path))
        for folder in sorted({os.path.dirname(path) for path in self._files}):
            # A package need not have an __init__.py.
            self._modules.setdefault(os.path.basename(folder), []).append((folder, None))

    def reached(self, imports: Mapping[str, Iterable[Import]]) -> Dict[str, Set[str]]:
        """Return for each file those that it imports, itself or by way of others."""
        direct = {path: {*self._direct(path, named), *self._packages(path)} for path, named in imports.items()}
        result: Dict[str, Set[str]] = {}
        for path in direct:
            found: Set[str] = set()
            waiting = [path]
            while waiting:
                new = direct.get(waiting.pop(), set()) - found
                found |= new
                waiting += new
            result[path] = found
        return result

    def _direct(self, path: str, imports: Iterable[Import]) -> Iterator[str]:
        for level, name in imports:
            inside = name.endswith(".*")
            module = self._find(path, level, name[:-2] if inside else name)
            if module is None:
                continue
            yield from (file for each, file in self._named(module) if each == module and file is not None)
            if inside:
                yield from (file for file in self._files if file.startswith(module + os.sep))

    def _named(self, module: str) -> List[Tuple[str, Optional[str]]]:
        return self._modules.get(os.path.basename(module), [])

    def _find(self, path: str, level: int, name: str) -> Optional[str]:
        """Return the place of a module, which may be in a part of the name's beginning; None for a library's."""
        parts = name.split(".") if name else []
        folder = os.path.dirname(path)
        if level:
            for _ in range(level - 1):
                folder = os.path.dirname(folder)
            while parts and not self._is_module(os.path.join(folder, *parts)):
                parts.pop()
            return os.path.join(folder, *parts)
        while parts:
            end = os.path.join(*parts)
            roots = {module[: -len(end) - 1] for module, _ in self._modules.get(parts[-1], []) if _ends(module, end)}
            roots = {root for root in roots if self._is_root(root, folder)}
            if roots:
                return os.path.join(max(sorted(roots), key=lambda root: _nearness(root, folder)), end)
            parts.pop()
        return None

    def _is_module(self, place: str) -> bool:
        return any(module == place for module, _ in self._named(place))

    def _is_root(self, root: str, folder: str) -> bool:
        if _contains(root, folder):
            return True
        return _contains(os.path.dirname(root), folder) and os.path.join(root, "__init__.py") not in self._files

    def _packages(self, path: str) -> Iterator[str]:
        """Yield the `__init__.py` of the packages that a file is in, which run before it."""
        folder = os.path.dirname(path)
        while os.path.join(folder, "__init__.py") in self._files:
            yield os.path.join(folder, "__init__.py")
            folder = os.path.dirname(folder)


def _ends(module: str, end: str) -> bool:
    return module == end or module.endswith(os.sep + end)


def _contains(folder: str, other: str) -> bool:
    return other == folder or other.startswith(folder.rstrip(os.sep) + os.sep)


def _nearness(root: str, folder: str) -> Tuple[int, bool]:
    return len(os.path.commonpath([root, folder])), _contains(root, folder)
