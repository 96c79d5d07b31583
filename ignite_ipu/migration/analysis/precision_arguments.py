"""What a call of Ignite's factories, or of ours, says of its precision: `amp_mode` and `scaler`."""

from __future__ import annotations

import ast
from typing import Dict, FrozenSet, Iterator, NamedTuple, Tuple

from ignite_ipu.migration.analysis.names import argument, constant


class _Meaning(NamedTuple):
    """An argument's place in both factories, the values that an IPU has, and how they are written down."""

    positions: Dict[str, int]
    values: FrozenSet[object]
    written: str


_MEANINGS: Dict[str, _Meaning] = {
    "amp_mode": _Meaning({"trainer": 9, "evaluator": 8}, frozenset({None, "amp"}), 'None and "amp"'),
    "scaler": _Meaning({"trainer": 10}, frozenset({None, False, True}), "False and True, which scales automatically,"),
}


def refused_precision(call: ast.Call, factory: str) -> Iterator[Tuple[ast.expr, str]]:
    """Find the arguments of a factory's call that may ask for what an IPU has not.

    Args:
        call: The call.
        factory: The dotted name of what it calls.

    Yields:
        Each argument's value, and what is wrong with it.
    """
    name = factory.rsplit(".", 1)[1]
    for keyword, meaning in _MEANINGS.items():
        position = meaning.positions.get(name.rsplit("_", 1)[1])
        value = None if position is None else argument(call, keyword, position)
        if value is None:
            continue
        possible = _values(value)
        if not possible <= meaning.values:
            other = next((repr(each) for each in possible - meaning.values if each is not ...), "another value")
            verb = "is" if isinstance(value, ast.Constant) else "may be"
            yield value, f"{keyword} of {name} {verb} {other}; only {meaning.written} have a counterpart on an IPU"


def _values(node: ast.expr) -> FrozenSet[object]:
    """Return the literals that an expression may give, with Ellipsis for all else."""
    if isinstance(node, ast.IfExp):
        return _values(node.body) | _values(node.orelse)
    if isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
        return frozenset({False, True})
    return frozenset({constant(node)})
