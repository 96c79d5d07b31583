"""Functions and methods outside of models, and those that calls of a file enter."""

from __future__ import annotations

import ast
from functools import cached_property
from typing import Dict, Iterable, List, Optional, Set

from ignite_ipu.migration.analysis.kinds import Function
from ignite_ipu.migration.analysis.names import dotted
from ignite_ipu.migration.analysis.parsed_file import ParsedFile
from ignite_ipu.program.reached import reached


class HostFunctions:
    """The functions and methods of a file that are no code of models, nested ones included.

    Attributes:
        all: All of them.
        by_name: Those of the file whose names only one has.
    """

    def __init__(self, file: ParsedFile) -> None:
        self._file = file
        definitions: List[Function] = [*file.nodes(ast.FunctionDef), *file.nodes(ast.AsyncFunctionDef)]
        self.all = [each for each in definitions if each not in file.traced]
        named: Dict[str, List[Function]] = {}
        for each in definitions:
            named.setdefault(each.name, []).append(each)
        self.by_name = {name: found[0] for name, found in named.items() if len(found) == 1}

    def callee(self, call: ast.Call) -> Optional[Function]:
        """Return the function that a call enters: by its name, or as a method of the file's classes.

        None for code of models, and for functions of other files.
        """
        owner, _, name = (dotted(call.func) or "").rpartition(".")
        function = self.by_name.get(name)
        if function is None or function in self._file.traced:
            return None
        above = self._file.parents[function]
        if not isinstance(above, ast.ClassDef):
            return None if owner else function
        made = [dotted(value.func) for value in self._file.values.get(owner, ()) if isinstance(value, ast.Call)]
        return function if owner in ("self", "cls") or above.name in made else None

    @cached_property
    def callers(self) -> Dict[Function, List[ast.Call]]:
        """The calls that enter each function which the file calls."""
        found: Dict[Function, List[ast.Call]] = {}
        for call in self._file.nodes(ast.Call):
            callee = self.callee(call)
            if callee is not None:
                found.setdefault(callee, []).append(call)
        return found

    def above(self, calls: Iterable[ast.Call]) -> Set[Optional[Function]]:
        """Return the functions that make calls, themselves or by what they call; None for the code of the module."""
        around = self._file.function_of
        found = reached(map(around, calls), lambda each: map(around, self.callers.get(each, ()) if each else ()))
        return set(found)
