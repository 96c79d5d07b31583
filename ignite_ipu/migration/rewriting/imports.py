"""Imports that a rewrite makes necessary, and those it makes superfluous."""

from __future__ import annotations

import ast
from typing import List, Optional, Sequence, Set, Tuple

import libcst as cst
from libcst.codemod import CodemodContext
from libcst.codemod.visitors import RemoveImportsVisitor

from ignite_ipu.migration.source.file import split_lines

PACKAGE = "ignite_ipu"


def update_imports(text: str, needed: Set[str], forgotten: Set[str]) -> str:
    """Import `needed` names from ignite_ipu, and remove imports of `forgotten` dotted names that nothing uses now."""
    module = cst.parse_module(text)
    if forgotten:
        module = _without(module, forgotten)
    tree = ast.parse(module.code)
    missing = needed - {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE and node.level == 0
        for alias in node.names
    }
    return _add(module, sorted(missing)).code if missing else module.code


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
def _add(module: cst.Module, names: Sequence[str]) -> cst.Module:
    for position, statement in enumerate(module.body):
        old = _package_import(statement)
        if old is not None:
            line, current = old
            wanted = sorted({*current, *names}, key=str.lower)
            new = line.with_changes(body=[_import_node(wanted)])
            return module.with_changes(body=[*module.body[:position], new, *module.body[position + 1 :]])
    line = cst.SimpleStatementLine([_import_node(names)])
    body = list(module.body)
    body.insert(_place(body), line)
    return module.with_changes(body=body)


def _package_import(
    statement: cst.BaseStatement,
) -> Optional[Tuple[cst.SimpleStatementLine, List[str]]]:
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    node = statement.body[0]
    if not isinstance(node, cst.ImportFrom) or isinstance(node.names, cst.ImportStar) or node.relative:
        return None
    if not isinstance(node.module, cst.Name) or node.module.value != PACKAGE:
        return None
    if any(alias.asname is not None for alias in node.names):
        return None
    return statement, [alias.evaluated_name for alias in node.names]


def _import_node(names: Sequence[str]) -> cst.ImportFrom:
    return cst.ImportFrom(cst.Name(PACKAGE), [cst.ImportAlias(cst.Name(name)) for name in names])


def _place(body: Sequence[cst.BaseStatement]) -> int:
    """Return where in the module a new import goes: after the imports at its top, in front of all other code."""
    place = 0
    for position, statement in enumerate(body):
        if not isinstance(statement, cst.SimpleStatementLine):
            break
        if all(isinstance(small, (cst.Import, cst.ImportFrom)) for small in statement.body):
            place = position + 1
        elif not _is_text(statement):
            break
        elif position == place:
            # The module's docstring; a notebook's later markers count only when imports follow them.
            place = position + 1 if position == 0 else place
    return place


def _is_text(statement: cst.SimpleStatementLine) -> bool:
    small = statement.body[0]
    return isinstance(small, cst.Expr) and isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString))
