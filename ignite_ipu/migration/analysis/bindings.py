"""What statements read, bind and call: the small questions that understanding a training step is made of."""

from __future__ import annotations

import ast
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Set

from ignite_ipu.migration.analysis.kinds import Function
from ignite_ipu.migration.analysis.names import dotted
from ignite_ipu.migration.analysis.tensor_methods import READING_METHODS

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _own_variables(node: ast.AST) -> Set[int]:
    """Return the ids of the nodes that name variables of comprehensions inside a node, which are nobody else's."""
    found: Set[int] = set()
    for part in ast.walk(node):
        if isinstance(part, _COMPREHENSIONS):
            targets = [name for generator in part.generators for name in ast.walk(generator.target)]
            own = {name.id for name in targets if isinstance(name, ast.Name)}
            first = {id(name) for name in ast.walk(part.generators[0].iter)}
            found |= {id(name) for name in ast.walk(part) if isinstance(name, ast.Name) and name.id in own} - first
    return found


def names_bound(node: ast.AST) -> Set[str]:
    """Return the names, and the attributes of names, that a node binds."""
    own = _own_variables(node)
    stored = [part for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]
    names = {part.id for part in stored if id(part) not in own}
    return names | {
        name
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
        for name in [dotted(part)]
        if name
    }


def names_loaded(node: Optional[ast.AST]) -> Set[str]:
    """Return the plain names that a node reads."""
    if node is None:
        return set()
    own = _own_variables(node)
    loaded = [part for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)]
    return {part.id for part in loaded if id(part) not in own}


def names_read(node: ast.AST) -> Set[str]:
    """Return the names, and the attributes of names, that a node reads."""
    own = _own_variables(node)
    return {
        name
        for part in ast.walk(node)
        if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Load) and id(part) not in own
        for name in [dotted(part)]
        if name is not None
    }


def functions_called(node: ast.AST) -> Set[str]:
    """Return the plain names that a node calls."""
    return {part.func.id for part in ast.walk(node) if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)}


def same_names(first: ast.expr, second: ast.expr) -> bool:
    """Whether two expressions are the same name, or tuples of the same names."""
    if isinstance(first, ast.Tuple) and isinstance(second, ast.Tuple):
        same = len(first.elts) == len(second.elts)
        return same and all(same_names(one, other) for one, other in zip(first.elts, second.elts))
    return isinstance(first, ast.Name) and isinstance(second, ast.Name) and first.id == second.id


def statements_before(body: Sequence[ast.stmt], last: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the statements of a loop body that come before `last`, at any depth."""
    for statement in body:
        if statement is last:
            return
        inside = any(part is last for part in ast.walk(statement))
        if not inside:
            yield statement
            continue
        children: Dict[str, List[ast.stmt]] = {
            name: getattr(statement, name, []) for name in ("body", "orelse", "finalbody")
        }
        for suite in children.values():
            if any(part is last for item in suite for part in ast.walk(item)):
                yield from statements_before(suite, last)
        return


_READING_FUNCTIONS = ("len", "float", "int", "print", "round", "str")


def only_reads(statement: ast.stmt, owners: Set[str], functions: Mapping[str, Function]) -> bool:
    """Whether a statement only looks at the outputs, so that it may as well run after the update.

    Args:
        statement: The statement.
        owners: Names that it does not mention then.
        functions: The file's own functions, which may do the looking.
    """
    return isinstance(statement, (ast.Assign, ast.AugAssign, ast.Expr)) and _looks(statement, owners, functions)


def _looks(statement: ast.stmt, owners: Set[str], functions: Mapping[str, Function]) -> bool:
    for part in ast.walk(statement):
        if dotted(part) in owners or isinstance(part, (ast.Await, ast.Yield, ast.YieldFrom, ast.Lambda)):
            return False
        if not isinstance(part, ast.Call):
            continue
        name = part.func.id if isinstance(part.func, ast.Name) else None
        method = part.func.attr if isinstance(part.func, ast.Attribute) else None
        if name is not None and name in functions:
            # Functions in that one are not followed: it may be the same again.
            for each in functions[name].body:
                if not (_looks(each, owners, {}) if isinstance(each, ast.Return) else only_reads(each, owners, {})):
                    return False
        elif name not in _READING_FUNCTIONS and method not in READING_METHODS:
            return False
    return True
