"""What keeps a training step from becoming one call, though each of its statements is understood."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Optional, Sequence, Set

from ignite_ipu.migration.analysis.bindings import names_bound, only_reads
from ignite_ipu.migration.analysis.names import argument, constant, dotted, owner_of
from ignite_ipu.migration.steps.plan import Refused

if TYPE_CHECKING:
    from ignite_ipu.migration.program import Program


def check_surroundings(program: Program, statement: ast.stmt) -> None:
    """Refuse a step under a context manager that changes what its statements do."""
    for above in program.ancestors(statement):
        if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        if isinstance(above, (ast.With, ast.AsyncWith)):
            for item in above.items:
                name = program.names.called(item.context_expr) or ""
                if name.startswith("torch.amp.") or name.endswith("autocast"):
                    raise Refused(above, "the step runs under autocast")
                method = getattr(getattr(item.context_expr, "func", None), "attr", "")
                if method in ("no_sync", "accumulate", "join"):
                    raise Refused(above, f"the step runs under {method}()")


def check_between(program: Program, statements: Sequence[ast.stmt], read: Set[str], owners: Set[str]) -> None:
    """Refuse statements between the forward and the update that would have to stay between them.

    Args:
        program: The file.
        statements: Those between that are no part of the step.
        read: Names that the forward and the loss read.
        owners: The model and the optimizer.
    """
    for statement in statements:
        clash = names_bound(statement) & read
        if clash:
            raise Refused(
                statement, f"{sorted(clash)[0]!r} is bound between the forward and the update, not for the loss alone"
            )
        if not only_reads(statement, owners, program.functions):
            raise Refused(statement, "a statement between the forward and the update may depend on their order")


def check_lines(program: Program, suite: Sequence[ast.stmt], step: Sequence[ast.stmt]) -> None:
    """Refuse statements of the step that share a line: one of them cannot be taken out alone."""
    lines = [statement.lineno for statement in suite]
    for statement in step:
        above = program.parents[statement]
        if lines.count(statement.lineno) > 1 or getattr(above, "lineno", 0) == statement.lineno:
            raise Refused(statement, "the step's statements share a line")


def check_inputs(program: Program, call: ast.Call, output: Optional[ast.expr], model: str) -> None:
    """Refuse a call of the model whose arguments or output the step's call cannot have."""
    if output is not None and not isinstance(output, (ast.Name, ast.Tuple)):
        raise Refused(output, "the model's output is not assigned to plain variables")
    if any(k.arg in ("target", "max_grad_norm") for k in call.keywords):
        raise Refused(call, "the model has a keyword argument that the step uses itself")
    if model in program.training.executors:
        raise Refused(call, "the model is a PopTorch executor already")


def check_optimizer(program: Program, backward: ast.Call, optimizer: str, model: str) -> None:
    """Refuse an optimizer that is seen to train something beside the model."""
    known = program.training.optimizers.get(optimizer)
    if known is None:
        return
    owners = set()
    for part in ast.walk(known[0]):
        owner = owner_of(part, "parameters", "named_parameters")
        if owner is not None:
            owners.add(owner)
    others = sorted(owner for owner in owners if owner != model and not owner.startswith(f"{model}."))
    # A training function's own parameter names the model differently from the place that makes the optimizer.
    local = program.function_of(backward)
    arguments = {arg.arg for arg in local.args.args} if local is not None else set()
    if others and model.split(".")[0] not in arguments:
        raise Refused(backward, f"{optimizer} also updates the parameters of {others[0] or 'another module'}")


def check_attributes(program: Program, loss: ast.expr, computed: ast.expr) -> None:
    """Refuse numbers kept in an object that changes them: a compiled loss would keep the first."""
    called = {id(part.func) for part in ast.walk(computed) if isinstance(part, ast.Call)}
    read = {
        dotted(part)
        for part in ast.walk(computed)
        if isinstance(part, ast.Attribute) and id(part) not in called and dotted(part) is not None
    }
    for node in program.nodes(ast.Attribute):
        if isinstance(node.ctx, ast.Store) and dotted(node) in read:
            around = program.function_of(node)
            if around is not None and around.name != "__init__":
                raise Refused(loss, f"the loss is computed with {dotted(node)!r}, which changes")


def clipping_obstacle(program: Program, optimizer: str) -> Optional[str]:
    """Return why PopTorch would not clip the gradients of an optimizer's parameters; None when it would."""
    known = program.training.optimizers.get(optimizer)
    if known is None:
        return f"the gradients are clipped, and the file does not show what {optimizer} is"
    call, kind = known
    if kind in ("torch.optim.Adam", "torch.optim.AdamW"):
        return None
    if kind != "torch.optim.SGD":
        return f"{kind} cannot clip gradients on an IPU"
    momentum = argument(call, "momentum", 2)
    if momentum is not None and constant(momentum) != 0:
        return "with momentum, PopTorch's SGD clips the velocity, not the gradients"
    groups = any(isinstance(part, (ast.Dict, ast.Starred)) for part in ast.walk(call))
    unclear = groups or any(keyword.arg is None for keyword in call.keywords)
    return "the gradients are clipped, and not all values of the optimizer are in sight" if unclear else None
