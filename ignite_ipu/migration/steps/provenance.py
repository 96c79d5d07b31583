"""Where the inputs and targets of a training step come from: a step of its own takes nothing from the one before."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Dict, List, Optional, Set

from ignite_ipu.migration.analysis.bindings import names_bound, names_loaded, names_read, statements_before
from ignite_ipu.migration.analysis.names import dotted

if TYPE_CHECKING:
    from ignite_ipu.migration.program import Program


def carried_name(
    program: Program, backward: ast.stmt, call: ast.Call, loss: ast.expr, outputs: Set[str]
) -> Optional[str]:
    """Return the name of an input or target that holds something of the batch before; None when there is none.

    Follows one iteration: at its start everything that the step and what comes after it bind is of the batch before,
    and so is what is made of it, until it is bound to something fresh.

    Args:
        program: The file.
        backward: The statement that calls backward().
        call: The call of the model.
        loss: What the loss is computed by.
        outputs: Names that the model's output is bound to.
    """
    loop = next(program.loops_around(backward), None)
    function = program.function_of(backward)
    if loop is not None:
        body = loop.body
    else:
        body = function.body if function is not None else []
    forward = program.statement_of(call)
    before = list(statements_before(body, forward))
    carried = {name for statement in body for name in names_bound(statement)}
    carried -= {name for statement in before for name in names_bound(statement)}
    carried |= names_bound(forward)
    if loop is None:
        # Between two calls of a function only its objects and globals keep a value.
        kept = {name for node in body for part in ast.walk(node) for name in getattr(part, "names", [])}
        carried = {name for name in carried if "." in name or name in kept}
    for statement in before:
        stored = names_bound(statement)
        accumulates = isinstance(statement, ast.AugAssign)
        carried = carried | stored if accumulates or names_read(statement) & carried else carried - stored
    inputs = {name for value in (*call.args, *(k.value for k in call.keywords)) for name in names_read(value)}
    late = inputs & carried
    for statement in statements_before(body, backward):
        if statement is forward:
            carried -= outputs
        elif statement.lineno > forward.lineno:
            stored = names_bound(statement)
            carried = carried | stored if names_read(statement) & carried else carried - stored
    late |= (names_read(loss) - outputs) & carried
    return sorted(late)[0] if late else None


def further_call(
    program: Program, backward: ast.stmt, call: ast.Call, loss: ast.expr, outputs: Set[str]
) -> Optional[ast.Call]:
    """Return a second call of a model that inputs or targets come out of, whose gradient would be lost.

    Args:
        program, backward, call, loss, outputs: As for `carried_name`.
    """
    models = program.training.models
    values: List[ast.expr] = [*call.args, *(keyword.value for keyword in call.keywords), loss]
    scope = _scope_assignments(program, backward)
    seen: Set[str] = set()
    while values:
        value = values.pop()
        for part in ast.walk(value):
            if isinstance(part, ast.Call) and part is not call and _runs_a_model(program, part, models):
                return part
        for name in sorted(names_loaded(value) - seen - outputs):
            seen.add(name)
            values.extend(scope.get(name, []))
    return None


def _runs_a_model(program: Program, call: ast.Call, models: Set[str]) -> bool:
    name = dotted(call.func)
    if name in models:
        return True
    if any(dotted(value) in models for value in call.args):
        # `torch.save(model)` is no forward, but then it is no target either.
        return program.names.resolve(call.func) in (None, "ignite_ipu.ipu_evaluate_batch")
    body = program.functions.get(name or "")
    return body is not None and any(dotted(part) in models for part in ast.walk(body))


def _scope_assignments(program: Program, backward: ast.stmt) -> Dict[str, List[ast.expr]]:
    """Return the values that names are given in the innermost loop, or in the function when there is none."""
    loop = next(program.loops_around(backward), None)
    around: Optional[ast.AST] = loop if loop is not None else program.function_of(backward)
    found: Dict[str, List[ast.expr]] = {}
    for node in ast.walk(around) if around is not None else ():
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            for name in names_bound(node):
                found.setdefault(name, []).append(node.value)
    return found
