"""optimizer.step(closure).

The update is part of the compiled program; PopTorch never calls a closure. `run` makes such updates on the host.

Remedy: Compute loss and backward in the step and call step() without arguments. An algorithm that needs several
evaluations per step, such as LBFGS, trains with IPUConfig(update='host'), where PyTorch makes the updates.

In the loop:
    - optimizer.step(lambda: loss)
    + optimizer.step()
"""

from __future__ import annotations

import ast

from ignite_ipu.capabilities import GRADIENTS
from ignite_ipu.migration.analysis.names import argument
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

_CLOSURE = GRADIENTS["torch.optim.Optimizer.step(closure)"]
SEVERITY, RUN = Severity.ERROR, Outcome.of(_CLOSURE)


def check(program: Program) -> Hits:
    functions = {node.name for node in program.nodes(ast.FunctionDef)}
    for call, owner in program.method_calls("step"):
        closure = argument(call, "closure", 0)
        if closure is None or owner in program.training.schedulers:
            continue
        named = isinstance(closure, ast.Name) and closure.id in functions
        if owner in program.training.optimizers or isinstance(closure, ast.Lambda) or named:
            yield Hit(call, f"{owner}.step() is given a closure, which an IPU never calls", entry=_CLOSURE)
