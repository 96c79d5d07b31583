"""Values of expressions of numbers, where variables have known ones: in tests of counters and lengths of loops."""

from __future__ import annotations

import ast
import operator
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Type, Union

from ignite_ipu.migration.analysis.names import dotted, names_bound

ORDERS: Dict[Type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
"""Comparisons by the order of numbers."""

_OPERATORS: Dict[Type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    **ORDERS,
}


def count_iteration(node: Union[ast.For, ast.AsyncFor], number: int, variables: Dict[str, Any]) -> None:
    """Give the variables of a loop their values in an iteration."""
    for name in names_bound(node.target):
        variables.pop(name, None)
    call = node.iter if isinstance(node.iter, ast.Call) else None
    function = dotted(call.func) if call is not None else None
    if call is None or function not in ("range", "enumerate"):
        return
    given = [value_of(value, variables) for value in call.args]
    if function == "enumerate":
        starts = [value_of(each.value, variables) for each in call.keywords if each.arg == "start"]
        first = [*given[1:], *starts, 0][0]
        target = node.target.elts[0] if isinstance(node.target, (ast.Tuple, ast.List)) else None
    else:
        first = 0 if len(given) == 1 else given[0]
        number *= given[2] if len(given) == 3 and isinstance(given[2], int) else 1
        target = node.target
    if isinstance(target, ast.Name) and isinstance(first, int):
        variables[target.id] = first + number


def length_of(node: ast.expr, variables: Mapping[str, Any]) -> Optional[int]:
    """Return the length of what a loop runs over, None for unknown."""
    if isinstance(node, ast.Call) and dotted(node.func) == "range":
        given = [value_of(value, variables) for value in node.args]
        return len(range(*given)) if all(isinstance(value, int) for value in given) and given else None
    return len(node.elts) if isinstance(node, (ast.List, ast.Tuple)) else None


def value_of(node: ast.AST, variables: Mapping[str, Any]) -> Any:
    """Return the value of an expression of numbers, None for unknown."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, (bool, int, float)) else None
    if isinstance(node, ast.Name):
        return variables.get(node.id)
    if isinstance(node, ast.UnaryOp):
        value = value_of(node.operand, variables)
        if value is None:
            return None
        return not value if isinstance(node.op, ast.Not) else -value if isinstance(node.op, ast.USub) else None
    if isinstance(node, ast.BoolOp):
        values = [value_of(each, variables) for each in node.values]
        ending = isinstance(node.op, ast.Or)
        if any(value is not None and bool(value) is ending for value in values):
            return ending
        return None if None in values else not ending
    pairs: List[Tuple[Type[ast.AST], Any, Any]] = []
    if isinstance(node, ast.BinOp):
        pairs = [(type(node.op), value_of(node.left, variables), value_of(node.right, variables))]
    elif isinstance(node, ast.Compare):
        values = [value_of(each, variables) for each in (node.left, *node.comparators)]
        pairs = [(type(each), *sides) for each, sides in zip(node.ops, zip(values, values[1:]))]
    if not pairs or any(kind not in _OPERATORS or left is None or right is None for kind, left, right in pairs):
        return None
    try:
        results = [_OPERATORS[kind](left, right) for kind, left, right in pairs]
    except (ArithmeticError, TypeError):
        return None
    return results[0] if isinstance(node, ast.BinOp) else all(results)
