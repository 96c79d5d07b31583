"""loss.item() and the like in a training loop.

One call can run many steps on the device (options.deviceIterations); reading a value each time keeps the host in
between, and shows the mean of the whole call.

Remedy: Read it every N iterations, or collect it with a metric.

In the loop:
      optimizer.step()
    - total = total + loss.item()
"""

from __future__ import annotations

import ast

from ignite_ipu.migration.analysis.names import owner_of, walk
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.NOTE, Outcome.HANDLED


def check(program: Program) -> Hits:
    for backward in program.training.backwards:
        loss = owner_of(backward, "backward")
        loop = next(program.loops_around(backward), None)
        for part in walk(loop) if loop is not None else ():
            if loss and owner_of(part, "item") == loss and not _now_and_then(program, part):
                yield Hit(part, f"{loss}.item() is read in every iteration")


def _now_and_then(program: Program, node: ast.AST) -> bool:
    return any(
        isinstance(above, ast.If) and any(isinstance(part, ast.Mod) for part in walk(above.test))
        for above in program.ancestors(node)
    )
