"""Notebooks as programs: their code cells run in order; IPython's own syntax runs where IPython is installed."""

from __future__ import annotations

import ast
import json
import linecache
import os
import sys
from types import ModuleType
from typing import Any, List
from unittest import mock

from ignite_ipu.errors import UserError

SUFFIX = ".ipynb"


def cells_of(path: str) -> List[str]:
    """Return the source of a notebook's code cells, in order.

    Raises:
        UserError: The file is no notebook.
    """
    try:
        with open(path, encoding="utf-8") as opened:
            content = json.load(opened)
        cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
        return ["".join(cell["source"]) for cell in cells]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{path!r} is not a notebook of format 4: {type(error).__name__}: {error}") from error


def run_notebook(path: str) -> None:
    """Run the code cells of a notebook as `__main__`; an exception of a cell ends the run.

    Raises:
        UserError: A cell has syntax of IPython, which is not installed.
    """
    cells = cells_of(path)
    plain = [is_python(cell) for cell in cells]
    if all(plain):
        run_cell = _plain_cells(path)
    else:
        run_cell = _ipython_cells(path, plain.index(False) + 1)
    for number, cell in enumerate(cells, start=1):
        run_cell(number, cell)


def is_python(cell: str) -> bool:
    """Return whether a cell has no syntax of IPython."""
    try:
        ast.parse(cell)
    except SyntaxError:
        return False
    return True


def _name(path: str, number: int) -> str:
    return f"{os.path.abspath(path)}, cell {number}"


def _plain_cells(path: str) -> Any:
    main = ModuleType("__main__")

    def run_cell(number: int, cell: str) -> None:
        name = _name(path, number)
        linecache.cache[name] = len(cell), None, cell.splitlines(keepends=True), name
        before = sys.modules["__main__"]
        sys.modules["__main__"] = main
        try:
            exec(compile(cell, name, "exec"), vars(main))
        finally:
            sys.modules["__main__"] = before

    return run_cell


def _ipython_cells(path: str, first: int) -> Any:
    try:
        from IPython.core import interactiveshell
        from IPython.core.compilerop import CachingCompiler
    except ImportError as error:
        raise UserError(
            f"cell {first} of {path!r} has syntax of IPython, such as %magic or !command, and IPython is not "
            "installed. Install it with pip install ipython, or remove that syntax."
        ) from error

    class Compiler(CachingCompiler):
        """Names cells in tracebacks by the notebook and their number in it."""

        number = 0

        def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
            return _name(path, self.number)

    shell: Any = interactiveshell.InteractiveShell.instance()
    make: Any = Compiler
    compiler = make()

    def run_cell(number: int, cell: str) -> None:
        compiler.number = number
        with mock.patch.object(shell, "showtraceback"), mock.patch.object(shell, "showsyntaxerror"):
            # `warn` explains how to leave an interactive shell, after each SystemExit.
            with mock.patch.object(shell, "compile", compiler), mock.patch.object(interactiveshell, "warn"):
                result: Any = shell.run_cell(cell, store_history=True)
        result.raise_error()

    return run_cell
