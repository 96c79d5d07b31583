"""Process functions of Ignite engines that train, which `ipu_step` runs as device steps."""

from __future__ import annotations

import ast
from typing import Iterator, List, Optional, Set, Tuple

from ignite_ipu.migration.analysis.names import argument, dotted
from ignite_ipu.migration.analysis.parsed_file import ParsedFile
from ignite_ipu.migration.analysis.training import Training


def captured_functions(file: ParsedFile) -> Set[str]:
    """Return the names of the functions that the file gives to `ipu_step`."""
    given = (argument(call, "train_step", 0) for call, _ in file.calls("ignite_ipu.ipu_step"))
    return {_last_name(_behind(file, process)) for process in given if process is not None}


def training_functions(training: Training) -> Iterator[Tuple[ast.expr, ast.FunctionDef]]:
    """Yield what is given to Ignite's engines to call for each batch, with the definitions of those that train."""
    file = training.file
    functions: List[Optional[ast.AST]] = [file.function_of(call) for call in training.backwards]
    for engine, _ in file.calls("ignite.engine.Engine"):
        process = argument(engine, "process_function", 0)
        if process is None or file.names.called(process) == "ignite_ipu.ipu_step":
            continue
        name = _last_name(_behind(file, process))
        for function in file.nodes(ast.FunctionDef):
            if function.name == name and function in functions:
                yield process, function


def _behind(file: ParsedFile, process: ast.expr) -> ast.expr:
    """Return the function in a `functools.partial` that an expression is or names; else the expression."""
    name = dotted(process)
    values = [process] if name is None else file.values.get(name, [])
    call = values[0] if len(values) == 1 else None
    if isinstance(call, ast.Call) and file.names.called(call) == "functools.partial" and call.args:
        return call.args[0]
    return process


def _last_name(function: ast.expr) -> str:
    return (dotted(function) or "").rsplit(".", 1)[-1]
