"""A value that an executor returns and gets back with the next batch, such as an LSTM's hidden state.

A call of an executor may stand for many steps (options.deviceIterations); a tensor carried over by Python would skip
the steps in between.

Remedy: Keep the state in a buffer that forward updates in place, or start each sequence afresh. A loop that ipu_prepare
captures may carry state.

Example:
      import poptorch
      import torch

      training_model = poptorch.trainingModel(RecurrentWithLoss())
    - hidden = torch.zeros(8, 4)
      for x, y in loader:
    +     hidden = torch.zeros(8, 4)
          out, hidden = training_model(x, hidden)
"""

from __future__ import annotations

import ast
from typing import Set

from ignite_ipu.migration.analysis.names import dotted, walk
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Severity
from ignite_ipu.migration.program import Program

SEVERITY, RUN = Severity.ERROR, Outcome.UNCHANGED


def check(program: Program) -> Hits:
    for loop in program.nodes(ast.For):
        for part in loop.body:
            if not isinstance(part, ast.Assign) or not isinstance(part.value, ast.Call):
                continue
            call = part.value
            if dotted(call.func) not in program.training.executors:
                continue
            stored = {name.id for name in walk(part.targets[0]) if isinstance(name, ast.Name)}
            carried = stored & {name.id for value in call.args for name in walk(value) if isinstance(name, ast.Name)}
            if carried and not _rebound_before(loop, part, carried):
                yield Hit(call, f"{sorted(carried)[0]!r} is carried from one batch to the next")


def _rebound_before(loop: ast.For, part: ast.stmt, names: Set[str]) -> bool:
    bound = {name.id for name in walk(loop.target) if isinstance(name, ast.Name)}
    for statement in loop.body:
        if statement is part:
            break
        bound |= {name.id for name in walk(statement) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
    return names <= bound
