"""Calls of methods by name: the question that most rules about host code begin with."""

from __future__ import annotations

import ast
from typing import Iterable, Iterator, Tuple

from ignite_ipu.migration.names import owner_of


def method_calls(nodes: Iterable[ast.AST], *methods: str) -> Iterator[Tuple[ast.Call, str]]:
    """Yield the calls of methods of these names, each with the source of the object, "" when it is no chain of names.

    Args:
        nodes: Where to look: `program.nodes(ast.Call)` for a whole file in its order, `ast.walk(loop)` for a part.
        methods: Names of methods.
    """
    for node in nodes:
        owner = owner_of(node, *methods)
        if owner is not None:
            assert isinstance(node, ast.Call)
            yield node, owner
