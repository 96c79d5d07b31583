"""Rewrites, and the editor they work with.

Rewrites decide on the `ast` that the rules see too, and edit the concrete syntax tree of LibCST, which keeps every
space and comment. The two are brought together by position.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Callable, Dict, List, Mapping, Sequence, Set, Tuple, Union

import libcst as cst
from libcst import matchers
from libcst.codemod import CodemodContext
from libcst.codemod.visitors import RemoveImportsVisitor
from libcst.metadata import MetadataWrapper, PositionProvider

from ignite_ipu.migration.program import Program
from ignite_ipu.migration.rewriting.comma_lists import with_argument
from ignite_ipu.migration.source.file import split_lines

Range = Tuple[int, int, int, int]
Edited = Union[cst.CSTNode, cst.RemovalSentinel, "cst.FlattenSentinel[cst.BaseStatement]"]
Edit = Callable[..., Edited]

_PACKAGE = "ignite_ipu"
_ALIASES = [matchers.AtLeastN(matchers.ImportAlias(asname=None), n=1)]
_OURS = matchers.ImportFrom(module=matchers.Name(_PACKAGE), names=_ALIASES, relative=[])
_TEXT = matchers.Expr(matchers.SimpleString() | matchers.ConcatenatedString())


class RewriteRefused(Exception):
    """A file that a rewrite will not touch, with the reason."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


@dataclass(frozen=True)
class Remark:
    """Something a person should know about a line, from 1, of a migrated file, or why one was left alone.

    Its subject is the rewrite or the rule that has something to say.
    """

    line: int
    subject: str
    message: str


@dataclass(frozen=True)
class Rewrite:
    """One kind of change, with the name of its module; the example is a smallest program with its result."""

    name: str
    summary: str
    example: str
    apply: Callable[[Editor], None]


class Editor:
    """Collects the edits of one rewrite to one file."""

    def __init__(self, program: Program, subject: str) -> None:
        self.program = program
        self.subject = subject
        self.remarks: List[Remark] = []
        self._needed: Set[str] = set()
        self._forgotten: Set[str] = set()
        self._edits: Dict[cst.CSTNode, List[Tuple[Edit, Tuple[Any, ...]]]] = {}

    @cached_property
    def _wrapper(self) -> MetadataWrapper:
        # Most rewrites have nothing to do in most files, and this is most of their cost.
        return MetadataWrapper(cst.parse_module(self.program.source.text), unsafe_skip_copy=True)

    @cached_property
    def _nodes(self) -> Dict[Range, List[cst.CSTNode]]:
        nodes: Dict[Range, List[cst.CSTNode]] = {}
        for node, place in self._wrapper.resolve(PositionProvider).items():
            key = (place.start.line, place.start.column, place.end.line, place.end.column)
            nodes.setdefault(key, []).append(node)
        return nodes

    def replace(self, node: ast.AST, edit: Edit, *args: Any) -> None:
        """Replace the concrete node of an expression or a simple statement by `edit`'s result for it and `args`."""
        self._edits.setdefault(self._find(node), []).append((edit, args))

    def expression(self, node: ast.expr, text: str) -> None:
        """Replace an expression by another, given as text."""
        self.replace(node, lambda _, new: new, cst.parse_expression(text))

    def add_argument(self, call: ast.Call, name: str, value: str) -> None:
        equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        argument = cst.Arg(cst.parse_expression(value), keyword=cst.Name(name), equal=equal)
        self.replace(call, with_argument, argument)

    def remark(self, node: ast.AST, message: str) -> None:
        self.remarks.append(Remark(getattr(node, "lineno", 1), self.subject, message))

    def need(self, name: str, node: ast.AST) -> str:
        """Have `name` imported from ignite_ipu, and return it; a file that uses it for something else is refused."""
        imported = self.program.names.imports.get(name)
        if name in self.program.names.bound or (imported is not None and imported != f"{_PACKAGE}.{name}"):
            raise RewriteRefused(
                getattr(node, "lineno", 1), f"the file has a {name!r} of its own, which the rewritten code would hide"
            )
        self._needed.add(name)
        return name

    def forget(self, name: str) -> None:
        """Have the import of a name removed when nothing uses it any more."""
        self._forgotten.add(name)

    def finish(self) -> str:
        """Apply the edits, update the imports and return the new text; the old one if there is nothing to change."""
        if not self._edits:
            return self.program.source.text
        return _update_imports(self._wrapper.module.visit(_Applier(self._edits)), self._needed, self._forgotten)

    def _find(self, node: ast.AST) -> cst.CSTNode:
        statement = (cst.SimpleStatementLine, cst.BaseCompoundStatement)
        wanted = cst.BaseExpression if isinstance(node, ast.expr) else statement
        # Lines from 1, columns in characters.
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        start = self.program.column(first, getattr(node, "col_offset", 0))
        end = self.program.column(last, getattr(node, "end_col_offset", 0))
        for candidate in self._nodes.get((first, start, last, end), []):
            if isinstance(candidate, wanted):
                return candidate
        raise RewriteRefused(getattr(node, "lineno", 1), "its place in the text cannot be found")


class _Applier(cst.CSTTransformer):
    def __init__(self, edits: Mapping[cst.CSTNode, Sequence[Tuple[Edit, Tuple[Any, ...]]]]) -> None:
        super().__init__()
        self.edits = edits

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Edited:  # type: ignore[override]
        result: Edited = updated_node
        for edit, args in self.edits.get(original_node, ()):
            result = edit(result, *args)
        return result


def _update_imports(module: cst.Module, needed: Set[str], forgotten: Set[str]) -> str:
    """Import `needed` names from ignite_ipu, and remove imports of `forgotten` dotted names that nothing uses now."""
    if forgotten:
        module = _without(module, forgotten)
    missing = needed - {
        alias.name
        for node in ast.parse(module.code).body
        if isinstance(node, ast.ImportFrom) and node.module == _PACKAGE and node.level == 0
        for alias in node.names
    }
    return _add(module, missing).code if missing else module.code


def _without(module: cst.Module, forgotten: Set[str]) -> cst.Module:
    context, last = CodemodContext(), {name.rsplit(".", 1)[1] for name in forgotten}
    lines = split_lines(module.code)
    removed = False
    for node in ast.walk(ast.parse(module.code)):
        if not isinstance(node, ast.ImportFrom) or not node.module or node.level:
            continue
        # A comment there may be about more than the import, and would go with it; an import too many does no harm.
        if not any("#" in line for line in lines[max(node.lineno - 2, 0) : node.end_lineno]):
            for alias in node.names:
                if alias.name in last:
                    RemoveImportsVisitor.remove_unused_import(context, node.module, alias.name, alias.asname)
                    removed = True
    # The visitor looks up the scope of every name, even if no import is to go.
    return RemoveImportsVisitor(context).transform_module(module) if removed else module


# LibCST's own visitor would not keep the names in order, and puts an empty line behind.
def _add(module: cst.Module, names: Set[str]) -> cst.Module:
    place = _place(module.body)
    line = cst.SimpleStatementLine([])
    rest = module.body[place:]
    for position, statement in enumerate(module.body):
        if matchers.matches(statement, matchers.SimpleStatementLine(body=[_OURS])):
            line = cst.ensure_type(statement, cst.SimpleStatementLine)
            found = matchers.findall(line, matchers.ImportAlias())
            names = names | {cst.ensure_type(alias, cst.ImportAlias).evaluated_name for alias in found}
            place, rest = position, module.body[position + 1 :]
            break
    aliases = [cst.ImportAlias(cst.Name(name)) for name in sorted(names)]
    new = line.with_changes(body=[cst.ImportFrom(cst.Name(_PACKAGE), aliases)])
    return module.with_changes(body=[*module.body[:place], new, *rest])


def _place(body: Sequence[cst.BaseStatement]) -> int:
    """Return where in the module a new import goes: after the imports at its top, in front of all other code."""
    place = 0
    for position, statement in enumerate(body):
        small = statement.body if isinstance(statement, cst.SimpleStatementLine) else [statement]
        if all(isinstance(each, (cst.Import, cst.ImportFrom)) for each in small):
            place = position + 1
        elif not matchers.matches(small[0], _TEXT):
            break
        elif position == 0:
            # The module's docstring; a notebook's later markers count only when imports follow them.
            place = 1
    return place
