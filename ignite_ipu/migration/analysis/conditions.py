"""Python state in traced code: what is asked of it, and what is read."""

from __future__ import annotations

import ast
from typing import Iterator, List, Optional, Set

from ignite_ipu.migration.analysis.names import Names, constant, dotted, names_bound, walk


def attribute_named(call: ast.Call) -> str:
    """Return the attribute that `getattr` and its like are about, as a chain of names; its owner if it is computed."""
    owner, label = dotted(call.args[0]) or "", constant(call.args[1]) if len(call.args) > 1 else ...
    return f"{owner}.{label}" if isinstance(label, str) else owner


def reads(value: ast.expr, name: str) -> bool:
    """Tell whether an expression reads a chain of names, itself or by `getattr`."""
    for part in walk(value):
        if isinstance(part, ast.Call) and dotted(part.func) == "getattr" and attribute_named(part) == name:
            return True
        if dotted(part) == name:
            return True
    return False


def settled_by(node: ast.If) -> Set[str]:
    """Return the chains of names that a statement makes if it asks whether they are there, and what goes with these."""
    asked = set(_asked_to_exist(node.test))
    made = {name for statement in node.body for name in names_bound(statement)}
    return asked | made if asked & made else asked


def _asked_to_exist(test: ast.expr) -> Iterator[str]:
    """Yield the chains of names that a test asks whether they are there, or fit: None, empty, of another shape."""
    for part in walk(test):
        asked: List[ast.AST] = []
        if isinstance(part, ast.Compare) and not isinstance(part.ops[0], ast.Eq):
            asked = [each for value in (part.left, *part.comparators) for each in walk(value)]
        elif isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not):
            asked = walk(part.operand)
        for each in asked:
            if isinstance(each, ast.Call) and dotted(each.func) in ("getattr", "hasattr"):
                yield attribute_named(each)
            yield dotted(each) or ""


def device_test(test: ast.expr, names: Names) -> Optional[bool]:
    """Return what a test that asks "am I on an IPU?" gives in a trace; None for any other test."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = device_test(test.operand, names)
        return None if inner is None else not inner
    return True if names.called(test) == "poptorch.isRunningOnIpu" else None
