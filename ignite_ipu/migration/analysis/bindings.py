"""Bindings of names and attributes in a file: how often, and how, its code assigns them."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cached_property
from typing import Dict, List, Optional, Tuple, Union

from ignite_ipu.migration.analysis.kinds import Function
from ignite_ipu.migration.analysis.names import constant, has_hidden_arguments, index_of
from ignite_ipu.migration.analysis.parsed_file import ParsedFile, call_of

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

_CHANGES = (
    *("update", "pop", "setdefault", "clear", "popitem", "__setitem__"),
    *("insert", "remove", "reverse", "sort"),  # of lists
)
# Functions that a class is given to be compared with.
_ABOUT_CLASSES = ("super", "isinstance", "issubclass")


class Bindings:
    """The names, attributes, and elements of dictionaries and lists that the code of a file binds."""

    def __init__(self, file: ParsedFile) -> None:
        self._file = file

    def is_only_called(self, function: str) -> bool:
        """Return whether the file shows each use of a function or class, with all arguments."""
        named = [node for node in self._file.nodes(ast.Name) if node.id == function]
        named_by_owner = [node for node in self._file.nodes(ast.Attribute) if node.attr == function]
        used = (each for each in (*named, *named_by_owner) if not self._is_compared(each))
        calls = [call_of(self._file, each) for each in used]
        return all(call is not None and not has_hidden_arguments(call) for call in calls)

    def _is_compared(self, node: ast.expr) -> bool:
        """Return whether a node names a class that something is compared with, or declared to be of."""
        above = self._file.parents[node]
        declared = (getattr(above, each, None) for each in ("annotation", "returns"))
        return node in declared or self._file.names.called(above) in _ABOUT_CLASSES

    def variable(self, node: ast.Name) -> Optional[ast.expr]:
        """Return the value of a variable that the file binds once, None for another."""
        values = self._file.values.get(node.id, [])
        around = self._file.function_of(values[0]) if values else None
        if not len(values) == self._bound.get(node.id, 0) == 1 or self._is_executed:
            return None
        return values[0] if around in (None, self._file.function_of(node)) else None

    @cached_property
    def _bound(self) -> Counter[str]:
        """The number of times that code of the file binds each name, but for parameters and methods."""
        file = self._file
        found = Counter(node.id for node in file.nodes(ast.Name) if not isinstance(node.ctx, ast.Load))
        functions: List[Function] = [*file.nodes(ast.FunctionDef), *file.nodes(ast.AsyncFunctionDef)]
        defined: List[Union[Function, ast.ClassDef]] = [*functions, *file.nodes(ast.ClassDef)]
        found.update(node.name for node in defined if not isinstance(file.parents[node], ast.ClassDef))
        found.update(node.asname or node.name for node in file.nodes(ast.alias))
        found.update(node.name for node in file.nodes(ast.ExceptHandler) if node.name is not None)
        return found

    @cached_property
    def _is_executed(self) -> bool:
        """True if code may bind variables of the file by their names, as `exec` and `globals()` do."""
        called = self._file.calls("exec", "globals", "locals", "vars")
        return any(name != "vars" or not call.args for call, name in called)

    @cached_property
    def classes(self) -> Dict[str, ast.ClassDef]:
        """The classes of the module that the file defines once, by name."""
        found = [node for node in self._file.tree.body if isinstance(node, ast.ClassDef)]
        return {node.name: node for node in found if self._bound[node.name] == 1}

    @cached_property
    def _stores(self) -> Counter[str]:
        stored = (node.attr for node in self._file.nodes(ast.Attribute) if not isinstance(node.ctx, ast.Load))
        return Counter(stored)

    def stores(self, attribute: str) -> int:
        """Return how often code of the file assigns an attribute of a name, of whichever object."""
        return self._stores[attribute] + sum(name in (attribute, ...) for name in self._set_by_name)

    @cached_property
    def _set_by_name(self) -> List[object]:
        """The names of attributes that code sets by them, as by `setattr`; Ellipsis for unknown ones."""
        calls = [*self._file.calls("setattr"), *self._file.method_calls("__setattr__")]
        # `object.__setattr__` is called with the object first, the method of an object without it.
        return [constant(call.args[-2]) if len(call.args) > 1 else ... for call, _ in calls]

    @cached_property
    def element_writes(self) -> List[Tuple[ast.expr, object]]:
        """The dictionaries and lists into which code writes, each with the key; Ellipsis for an unknown one."""
        stores = (store for store in self._file.nodes(ast.Subscript) if not isinstance(store.ctx, ast.Load))
        written = [(store.value, constant(index_of(store))) for store in stores]
        for call, _ in self._file.method_calls(*_CHANGES):
            assert isinstance(call.func, ast.Attribute)
            written.append((call.func.value, ...))
        return written
