"""Definitions of a code base that a program uses for sure: those that its code calls by name, or passes on.

A class in a registry, or one of several that a setting chooses, may be used or not: no text shows it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from ignite_ipu.migration.analysis.bindings import DEFINITIONS
from ignite_ipu.migration.analysis.names import children
from ignite_ipu.migration.analysis.parsed_file import ParsedFile
from ignite_ipu.migration.analysis.settings import Settings, settings_of
from ignite_ipu.program.reached import reached

MODULE, MAIN = "", "__main__"
"""Scopes of the code that an import runs, and of the code behind `if __name__ == "__main__"`."""
CHOICE = "?"
"""Scope of a value that is one of several, by the name in a setting."""
_TRIES = (ast.Try, getattr(ast, "TryStar", ast.Try))
_REGISTRIES = (ast.Dict, ast.List, ast.Set, ast.Tuple)
_VALUES = (ast.Assign, ast.AnnAssign, ast.Return)
_ANNOTATED = (*DEFINITIONS, ast.AnnAssign, ast.arg)
_ASKED = ("isinstance", "issubclass")


@dataclass(frozen=True)
class Uses:
    """Names that each scope of a file uses, and the lines of each; a scope is a definition of the module, by name."""

    names: Mapping[str, FrozenSet[str]]
    lines: Tuple[Tuple[int, int, str], ...]

    def scope_of(self, line: int) -> str:
        """Return the scope that a line is in."""
        return next((scope for first, last, scope in reversed(self.lines) if first <= line <= last), MODULE)

    @property
    def is_script(self) -> bool:
        """True if the file has code that runs when it is started, and not when it is imported."""
        return MAIN in self.names


def uses_of(file: ParsedFile) -> Uses:
    """Return the uses in a file."""
    found = _Found(settings_of(file))
    found.visit_all(file.tree.body, MODULE)
    return Uses({scope: frozenset(names) for scope, names in found.names.items()}, tuple(found.lines))


class _Found:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.names: Dict[str, Set[str]] = {MODULE: set()}
        self.lines: List[Tuple[int, int, str]] = []

    def visit(self, node: ast.AST, scope: str) -> None:
        if isinstance(node, DEFINITIONS) and scope in (MODULE, MAIN):
            if any(isinstance(each, ast.Call) and _last(each.func) == "on" for each in node.decorator_list):
                self.names[scope].add(node.name)  # a handler: @trainer.on(Events.EPOCH_COMPLETED)
            scope = node.name
            self._add(node, scope)
        elif isinstance(node, ast.If) and _asks_for_main(node):
            self._enter(node.body, MAIN)
            self.visit_all(node.orelse, scope)
            return
        elif isinstance(node, ast.If):
            taken = self._taken(node)
            for body, runs in ((node.body, taken), (node.orelse, None if taken is None else not taken)):
                if runs is False:
                    self._add_lines(body, CHOICE)
                else:
                    self.visit_all(body, scope)
            self.visit_all([node.test], scope)
            return
        elif isinstance(node, _TRIES):
            for block in (node.body + node.orelse, node.handlers, node.finalbody):
                self.visit_all(block, scope)
            return
        below = _below(node)
        self.names[scope].update(self._references(node, below))
        self.visit_all(below, scope)

    def visit_all(self, nodes: Sequence[ast.AST], scope: str) -> None:
        for number, node in enumerate(nodes):
            self.visit(node, scope)
            if self._ends(node):
                self._add_lines([each for each in nodes[number + 1 :] if isinstance(each, ast.stmt)], CHOICE)
                return

    def _taken(self, node: ast.If) -> Optional[bool]:
        """Return the result of a test that settings decide; False for the choice of a value by an unknown setting."""
        decision = self.settings.decision(node.test)
        return False if decision is None and _is_choice(node) else decision

    def _ends(self, node: ast.AST) -> bool:
        """Return whether settings decide that a test returns from its function."""
        decision = self.settings.decision(node.test) if isinstance(node, ast.If) else None
        body = (node.body if decision else node.orelse) if isinstance(node, ast.If) and decision is not None else []
        return any(isinstance(each, (ast.Return, ast.Raise)) for each in body)

    def _references(self, node: ast.AST, below: Iterable[ast.AST]) -> Iterator[str]:
        """Yield the names that a node itself refers to, but not those that it lists, or only compares a class with.

        An element of a dictionary is what its setting chooses.
        """
        if isinstance(node, _REGISTRIES):
            return
        if isinstance(node, ast.Call) and _last(node.func) in _ASKED:
            return
        if isinstance(node, ast.Subscript):
            yield from (each.id for each in self.settings.behind(node) if isinstance(each, ast.Name))
        for each in below:
            name = _last(each)
            if name is not None:
                yield name

    def _enter(self, body: List[ast.stmt], scope: str) -> None:
        self._add_lines(body, scope)
        self.names.setdefault(scope, set())
        self.visit_all(body, scope)

    def _add(self, node: ast.stmt, scope: str) -> None:
        self._add_lines([node], scope)
        self.names.setdefault(scope, set())

    def _add_lines(self, body: List[ast.stmt], scope: str) -> None:
        if body:
            self.lines.append((body[0].lineno, body[-1].end_lineno or body[-1].lineno, scope))


def _asks_for_main(node: ast.If) -> bool:
    compared = [node.test.left, *node.test.comparators] if isinstance(node.test, ast.Compare) else []
    return any(isinstance(each, ast.Name) and each.id == "__name__" for each in compared)


def _is_choice(node: ast.If) -> bool:
    """Return whether a branch makes a value, and is taken if a setting has some name."""
    compared = [node.test.left, *node.test.comparators] if isinstance(node.test, ast.Compare) else []
    parts = [part for each in compared for part in (each.elts if isinstance(each, _REGISTRIES[1:]) else [each])]
    named = any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in parts)
    return named and all(isinstance(each, _VALUES) for each in node.body)


def _below(node: ast.AST) -> Sequence[ast.AST]:
    """Return the parts of a node in which references are uses: none in annotations and decorators."""
    if not isinstance(node, _ANNOTATED):
        return children(node)
    annotations = (getattr(node, "annotation", None), getattr(node, "returns", None))
    unused = (*annotations, *getattr(node, "decorator_list", ()))
    return [each for each in children(node) if each not in unused]


def _last(node: ast.AST) -> Optional[str]:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def used_scopes(files: Mapping[str, Uses], started: str) -> Dict[str, Set[str]]:
    """Return the scopes of each file that a program uses for sure.

    A file that defines something and uses none of it is no script: whatever uses it may use all.

    Args:
        files: The files that the program consists of.
        started: The one that is started.
    """
    found = {path: {MODULE} for path in files}
    own = files[started].names
    found[started] |= {MAIN} & own.keys()
    _follow(files, found)
    if found[started] <= {MODULE, MAIN}:
        found[started] |= own.keys()
        _follow(files, found)
    return found


def _follow(files: Mapping[str, Uses], found: Dict[str, Set[str]]) -> None:
    """Add the scopes that those which were found use."""

    def used_by(name: str) -> Iterator[str]:
        for path, uses in files.items():
            if name in uses.names and name not in (MODULE, MAIN):
                found[path].add(name)
                yield from uses.names[name]

    reached([name for path, scopes in found.items() for scope in scopes for name in files[path].names[scope]], used_by)
