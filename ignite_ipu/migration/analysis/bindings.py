"""Names that statements read and bind."""

from __future__ import annotations

import ast
from typing import Optional, Set

from ignite_ipu.migration.analysis.names import dotted, walk

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _own_variables(node: ast.AST) -> Set[int]:
    """Return the ids of the nodes that name variables of comprehensions inside a node, which are nobody else's."""
    found: Set[int] = set()
    for part in walk(node):
        if isinstance(part, _COMPREHENSIONS):
            targets = [name for generator in part.generators for name in walk(generator.target)]
            own = {name.id for name in targets if isinstance(name, ast.Name)}
            first = {id(name) for name in walk(part.generators[0].iter)}
            found |= {id(name) for name in walk(part) if isinstance(name, ast.Name) and name.id in own} - first
    return found


def names_bound(node: ast.AST) -> Set[str]:
    """Return the names, and the attributes of names, that a node binds."""
    own = _own_variables(node)
    stored = [part for part in walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]
    names = {part.id for part in stored if id(part) not in own}
    return names | {
        name
        for part in walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
        for name in [dotted(part)]
        if name
    }


def names_loaded(node: Optional[ast.AST]) -> Set[str]:
    """Return the plain names that a node reads."""
    if node is None:
        return set()
    own = _own_variables(node)
    loaded = [part for part in walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)]
    return {part.id for part in loaded if id(part) not in own}
