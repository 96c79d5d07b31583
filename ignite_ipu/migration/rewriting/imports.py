"""Imports that a rewrite makes necessary, and those it makes superfluous."""

from __future__ import annotations

import ast
from typing import Sequence, Set

import libcst as cst
from libcst import matchers
from libcst.codemod import CodemodContext
from libcst.codemod.visitors import RemoveImportsVisitor

from ignite_ipu.migration.source.file import split_lines

PACKAGE = "ignite_ipu"
_ALIASES = [matchers.AtLeastN(matchers.ImportAlias(asname=None), n=1)]
_OURS = matchers.ImportFrom(module=matchers.Name(PACKAGE), names=_ALIASES, relative=[])
_TEXT = matchers.Expr(matchers.SimpleString() | matchers.ConcatenatedString())


def update_imports(module: cst.Module, needed: Set[str], forgotten: Set[str]) -> str:
    """Import `needed` names from ignite_ipu, and remove imports of `forgotten` dotted names that nothing uses now."""
    if forgotten:
        module = _without(module, forgotten)
    missing = needed - {
        alias.name
        for node in ast.parse(module.code).body
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE and node.level == 0
        for alias in node.names
    }
    return _add(module, missing).code if missing else module.code


def _without(module: cst.Module, forgotten: Set[str]) -> cst.Module:
    context, last = CodemodContext(), {name.rsplit(".", 1)[1] for name in forgotten}
    lines = split_lines(module.code)
    for node in ast.walk(ast.parse(module.code)):
        if not isinstance(node, ast.ImportFrom) or not node.module or node.level:
            continue
        # A comment there may be about more than the import, and would go with it; an import too many does no harm.
        if not any("#" in line for line in lines[max(node.lineno - 2, 0) : node.end_lineno]):
            for alias in node.names:
                if alias.name in last:
                    RemoveImportsVisitor.remove_unused_import(context, node.module, alias.name, alias.asname)
    return RemoveImportsVisitor(context).transform_module(module)


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
    new = line.with_changes(body=[cst.ImportFrom(cst.Name(PACKAGE), aliases)])
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
