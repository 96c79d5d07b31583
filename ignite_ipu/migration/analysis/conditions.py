"""Tests in traced code: whether they are decided by the text, so that code behind them runs for sure."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cached_property
from typing import Counter as Counts
from typing import Iterator, NamedTuple, Optional, Set, Tuple

from ignite_ipu.migration.analysis.kinds import default_of, device_test, parameters_of
from ignite_ipu.migration.analysis.models import Model
from ignite_ipu.migration.analysis.names import assignments, constant, dotted, has_hidden_arguments, walk
from ignite_ipu.migration.analysis.number_values import ORDERS
from ignite_ipu.migration.analysis.parsed_file import ParsedFile, call_of


class Runs(NamedTuple):
    """Certainty that the code behind a test runs: if the test holds, and if not."""

    if_true: bool
    if_false: bool


_OPEN = Runs(False, False)


class Conditions:
    """Decides tests by the text of a file.

    A flag that a model is given is known if each construction in the file gives it, or leaves the default. A model that
    trains is called in training mode, and in evaluation mode if something in the file calls `eval()`. A variable that
    the file binds once, to a literal, is known, and so is a parameter of a function that the file alone calls.
    """

    def __init__(self, file: ParsedFile) -> None:
        self._file = file
        self._evaluates = any(True for _ in file.method_calls("eval"))

    def runs(self, test: ast.expr, model: Optional[Model], owner: str) -> Runs:
        """Return whether the code behind a test runs for sure, in a method of a model that is called `owner` there."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return Runs(*reversed(self.runs(test.operand, model, owner)))
        if owner and dotted(test) == f"{owner}.training":
            return Runs(True, self._evaluates)
        results = self._results(test, model, owner)
        return _OPEN if None in results else Runs(True in results, False in results)

    def _results(self, test: ast.expr, model: Optional[Model], owner: str) -> Set[Optional[bool]]:
        """Return the results of a test, one for each way in which the file constructs the model; None for unknown."""
        on_device = device_test(test, self._file.names)
        if on_device is not None:
            return {on_device}
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return {None if each is None else not each for each in self._results(test.operand, model, owner)}
        if isinstance(test, ast.BoolOp):
            found = [self._results(each, model, owner) for each in test.values]
            ending = isinstance(test.op, ast.Or)
            if {ending} in found:
                return {ending}
            return {not ending} if all(each == {not ending} for each in found) else {None}
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return {_compared(test.ops[0], left, right) for left, right in self._pairs(test, model, owner)}
        return {None if value is ... else bool(value) for value in self._literals(test, model, owner)}

    def _pairs(self, test: ast.Compare, model: Optional[Model], owner: str) -> Iterator[Tuple[object, object]]:
        for left in self._literals(test.left, model, owner):
            for right in self._literals(test.comparators[0], model, owner):
                yield left, right

    def _literals(self, node: ast.expr, model: Optional[Model], owner: str) -> Iterator[object]:
        """Yield the literals that an expression may have as its value, and Ellipsis for others."""
        name = dotted(node) or ""
        attribute = name[len(owner) + 1 :] if owner and name.startswith(f"{owner}.") else ""
        if not attribute or model is None or attribute not in model.values or self._stored(attribute) > 1:
            yield from self._named(node)
            return
        value, init = model.values[attribute], model.method("__init__")
        parameter = dotted(value)
        if init is None or parameter is None:
            yield constant(value)
            return
        given = self._file.given(init, parameter)
        assigned = any(parameter == target for node in walk(init) for target, _ in assignments(node))
        for each in given if not assigned else ():
            yield constant(default_of(init, parameter) if each is None else each)
        if not given or assigned:
            yield ...  # a file that imports the class may construct it with any

    def _named(self, node: ast.expr) -> Iterator[object]:
        """Yield the literals that a variable or a parameter of a function may hold."""
        if not isinstance(node, ast.Name):
            yield constant(node)
            return
        name, function = node.id, self._file.function_of(node)
        stored = self._bound.get(name, 0)
        if function is not None and name in {each.arg for each in parameters_of(function)}:
            known = self._file.functions.get(function.name) is function and not stored
            given = self._file.given(function, name) if known and self._is_only_called(function.name) else []
            yield from (constant(default_of(function, name) if each is None else each) for each in given)
            if not given:
                yield ...
            return
        values = self._file.values.get(name, [])
        around = self._file.function_of(values[0]) if values else None
        known = len(values) == stored == 1 and around in (None, function) and not self._is_executed
        yield constant(values[0]) if known else ...

    @cached_property
    def _bound(self) -> Counts[str]:
        """The number of times that code of the file binds each name."""
        stored = (node.id for node in self._file.nodes(ast.Name) if not isinstance(node.ctx, ast.Load))
        return Counter(stored)

    @cached_property
    def _is_executed(self) -> bool:
        """True if code may bind variables of the file by their names, as `exec` and `globals()` do."""
        return any(True for _ in self._file.calls("exec", "globals", "locals", "vars"))

    def _is_only_called(self, function: str) -> bool:
        """Return whether the file shows each use of a function, with all arguments."""
        uses = [node for node in self._file.nodes(ast.Name) if node.id == function]
        calls = [call_of(self._file, each) for each in uses]
        return all(call is not None and not has_hidden_arguments(call) for call in calls)

    def _stored(self, attribute: str) -> int:
        nodes = self._file.nodes(ast.Attribute)
        return sum(node.attr == attribute and isinstance(node.ctx, ast.Store) for node in nodes)


def _compared(operator: ast.cmpop, left: object, right: object) -> Optional[bool]:
    if left is ... or right is ...:
        return None
    if isinstance(operator, (ast.Eq, ast.Is)):
        return left == right
    if isinstance(operator, (ast.NotEq, ast.IsNot)):
        return left != right
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        compared = ORDERS.get(type(operator))
        return None if compared is None else bool(compared(left, right))
    return None
