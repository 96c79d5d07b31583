"""Literals that an expression may be: through names, defaults of parameters and attributes that `__init__` sets."""

from __future__ import annotations

import ast
from typing import Iterator, List, Optional

from ignite_ipu.migration.analysis.bindings import names_bound
from ignite_ipu.migration.analysis.kinds import default_of, parameters_of
from ignite_ipu.migration.analysis.names import constant, dotted
from ignite_ipu.migration.analysis.parsed_file import ParsedFile

_DEEPEST = 8


def literals(file: ParsedFile, node: Optional[ast.AST], depth: int = 0) -> Iterator[object]:
    """Yield the literals that an expression may be, as far as the file shows, and Ellipsis for whatever else it may."""
    if isinstance(node, (ast.Tuple, ast.List)):
        values = [constant(element) for element in node.elts]
        yield ... if ... in values else values
    elif isinstance(node, ast.IfExp):
        yield from literals(file, node.body, depth)
        yield from literals(file, node.orelse, depth)
    elif isinstance(node, (ast.Name, ast.Attribute)) and depth < _DEEPEST:
        behind = list(_behind(file, node))
        for value in behind or [None]:
            yield from literals(file, value, depth + 1)
    else:
        yield constant(node)


def _behind(file: ParsedFile, node: ast.expr) -> Iterator[Optional[ast.expr]]:
    """Yield the expressions that a name stands for; None for what the file does not show."""
    name, function = dotted(node) or "", file.function_of(node)
    if name.startswith("self.") and name.count(".") == 1:
        above = next((each for each in file.ancestors(node) if isinstance(each, ast.ClassDef)), None)
        yield next((model.values.get(name[5:]) for model in file.models if model.node is above), None)
    elif function is not None and name in {parameter.arg for parameter in parameters_of(function)}:
        if any(name in names_bound(statement) for statement in function.body):
            yield None
            return
        given = file.given(function, name)
        yield from (value for value in given if value is not None)
        if not given or None in given:
            yield default_of(function, name)
    else:
        values = file.values.get(name, [])
        local = [value for value in values if file.function_of(value) is function]
        found: List[ast.expr] = local or [value for value in values if file.function_of(value) is None]
        yield found[0] if len(found) == 1 else None
