"""Names that are bound anew while a program trains: for each batch, or by the loops around the batches'."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Iterable, Set, Union

from ignite_ipu.migration.analysis.bindings import names_bound
from ignite_ipu.migration.analysis.kinds import Function

if TYPE_CHECKING:
    from ignite_ipu.migration.program import Program


def per_batch_names(program: Program, statement: ast.stmt) -> Set[str]:
    """Return what is bound anew for each batch: by the innermost loop, or by the whole function without one."""
    loop = next(program.loops_around(statement), None)
    if loop is not None:
        return _bound_by(loop)
    function = program.function_of(statement)
    if function is None:
        return set()
    # A process function's arguments are the batch; a training function without a loop gets it the same way.
    return (_arguments(function) | _bound_in(function.body)) - {"self"}


def rebound_names(program: Program, statement: ast.stmt) -> Set[str]:
    """Return what the loops around the batch's bind anew, such as a weight of the loss that grows with the epoch.

    A compiled loss keeps what it reads from the module, so these have to come with the batch.
    """
    outer = list(program.loops_around(statement))[1:]
    return {name for loop in outer for name in _bound_by(loop)}


def bound_in_loop(program: Program, statement: ast.stmt) -> Set[str]:
    """Return what the body of the innermost loop binds."""
    loop = next(program.loops_around(statement), None)
    return set() if loop is None else _bound_in(loop.body)


def own_names(function: Function) -> Set[str]:
    """Return the names that belong to a function: its arguments, what it binds, and the functions in it."""
    inner = {node.name for node in ast.walk(function) if isinstance(node, ast.FunctionDef) and node is not function}
    return _arguments(function) | _bound_in(function.body) | inner


def _arguments(function: Function) -> Set[str]:
    arguments = function.args
    return {arg.arg for arg in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}


def _bound_by(loop: Union[ast.For, ast.AsyncFor, ast.While]) -> Set[str]:
    return _bound_in(loop.body) | (names_bound(loop.target) if not isinstance(loop, ast.While) else set())


def _bound_in(body: Iterable[ast.stmt]) -> Set[str]:
    return {name for statement in body for name in names_bound(statement)}
