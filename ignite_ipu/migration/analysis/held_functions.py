"""Functions that lists, dictionaries and variables of a file hold, as far as its text writes them out."""

from __future__ import annotations

import ast
from typing import Dict, List, Optional

from ignite_ipu.migration.analysis.kinds import Function, parameters_of
from ignite_ipu.migration.analysis.names import constant, dotted
from ignite_ipu.migration.analysis.parsed_file import ParsedFile
from ignite_ipu.migration.analysis.settings import settings_of

_ELEMENTS = ("values", "items")


class HeldFunctions:
    """The functions that the names of one function of a file stand for."""

    def __init__(self, file: ParsedFile, function: Function) -> None:
        self._file, self._function = file, function
        # Those that a loop over a list or a dictionary takes by a name.
        self._of_loops: Dict[str, List[ast.expr]] = {}

    def iterate(self, target: ast.expr, node: ast.expr) -> None:
        """Note the elements that a loop takes by a name."""
        elements = self._elements(node)
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        if elements and isinstance(parts[-1], ast.Name):
            self._of_loops[parts[-1].id] = list(elements.values())

    def behind(self, node: ast.expr) -> List[ast.expr]:
        """Return the expressions that a name or an element stands for."""
        if isinstance(node, ast.Name) and node.id in self._of_loops:
            return self._of_loops[node.id]
        if isinstance(node, ast.Subscript):
            found = list(settings_of(self._file).behind(node))
            return [each for each in found if each is not None] if len(found) == 1 else []
        own = isinstance(node, ast.Name) and node.id in {each.arg for each in parameters_of(self._function)}
        value = None if own else self._value_of(node)
        return [value] if value is not None else []

    def _elements(self, node: ast.expr) -> Dict[object, ast.expr]:
        """Return the elements of a list or dictionary by their keys."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ELEMENTS:
            node = node.func.value
        made = self._value_of(node)
        if isinstance(made, ast.Dict):
            return {constant(key): value for key, value in zip(made.keys, made.values) if key is not None}
        return dict(enumerate(made.elts)) if isinstance(made, (ast.List, ast.Tuple)) else {}

    def _value_of(self, node: ast.expr) -> Optional[ast.expr]:
        """Return the one expression that the file assigns to a name, or an expression that is no name."""
        name = dotted(node)
        return node if name is None else self._file.single_value(name)
