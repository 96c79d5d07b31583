"""Imports that a rewrite makes necessary, and those it makes superfluous."""

from __future__ import annotations

import ast
from typing import List, Optional, Sequence, Set, Tuple, Union

import libcst as cst

from ignite_ipu.migration.rewriting.comma_lists import without_names

PACKAGE = "ignite_ipu"


def update_imports(text: str, needed: Set[str], forgotten: Set[str]) -> str:
    """Import `needed` names from ignite_ipu, and remove imports of `forgotten` dotted names that nothing uses now."""
    module = cst.parse_module(text)
    unused = _unused(text, forgotten)
    if unused:
        module = module.visit(_Remover(unused))
    tree = ast.parse(module.code)
    missing = needed - {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE and node.level == 0
        for alias in node.names
    }
    return _add(module, sorted(missing)).code if missing else module.code


def _unused(text: str, forgotten: Set[str]) -> Set[Tuple[str, str]]:
    """Return (module, name) of from-imports whose name is not mentioned any more."""
    tree = ast.parse(text)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {
        element.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
        for element in ast.walk(node.value)
        if isinstance(element, ast.Constant) and isinstance(element.value, str)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                bound = alias.asname or alias.name
                last = {name.rsplit(".", 1)[1] for name in forgotten}
                if alias.name in last and bound not in used:
                    found.add((node.module, alias.name))
    return found


class _Remover(cst.CSTTransformer):
    def __init__(self, unused: Set[Tuple[str, str]]) -> None:
        super().__init__()
        self.unused = unused

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> Union[cst.ImportFrom, cst.RemovalSentinel]:
        names = updated_node.names
        if isinstance(names, cst.ImportStar) or updated_node.module is None or updated_node.relative:
            return updated_node
        module = cst.Module([]).code_for_node(updated_node.module)
        dropped = [alias for alias in names if (module, alias.evaluated_name) in self.unused]
        if len(dropped) == len(names):
            return cst.RemoveFromParent()
        return without_names(updated_node, dropped) if dropped else updated_node

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Union[cst.SimpleStatementLine, cst.RemovalSentinel, cst.FlattenSentinel[cst.BaseStatement]]:
        if updated_node.body or not original_node.body:
            return updated_node
        comments = [line.comment for line in updated_node.leading_lines]
        comments.append(updated_node.trailing_whitespace.comment)
        # A comment there may be about more than the import; an import too many does no harm.
        return original_node if any(comments) else cst.RemoveFromParent()


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
