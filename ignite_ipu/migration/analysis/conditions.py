"""Tests in traced code: whether they are decided by the text, so that code behind them runs for sure."""

from __future__ import annotations

import ast
from typing import NamedTuple, Optional

from ignite_ipu.migration.analysis.models import Model
from ignite_ipu.migration.analysis.names import dotted
from ignite_ipu.migration.analysis.parsed_file import ParsedFile
from ignite_ipu.migration.analysis.settings import settings_of


class Runs(NamedTuple):
    """Certainty that the code behind a test runs: if the test holds, and if not."""

    if_true: bool
    if_false: bool


_OPEN = Runs(False, False)


class Conditions:
    """Decides tests by the text of a file.

    A flag that a model is given is known if each construction in the file gives it, or leaves the default. A model that
    trains is called in training mode, and in evaluation mode if something in the file calls `eval()`. A setting has
    its value, and an option of the command line its default.
    """

    def __init__(self, file: ParsedFile) -> None:
        self.settings = settings_of(file)
        self._evaluates = any(True for _ in file.method_calls("eval"))

    def runs(self, test: ast.expr, model: Optional[Model], owner: str) -> Runs:
        """Return whether the code behind a test runs for sure, in a method of a model that is called `owner` there."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return Runs(*reversed(self.runs(test.operand, model, owner)))
        if owner and dotted(test) == f"{owner}.training":
            return Runs(True, self._evaluates)
        results = self.settings.results(test, lambda node: self.settings.literals(node, model, owner))
        return _OPEN if None in results else Runs(True in results, False in results)
