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

from ignite_ipu.migration.analysis.names import dotted, names_bound, names_loaded
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.UNCHANGED


def check(program: Program) -> Hits:
    for loop in program.nodes(ast.For):
        for part in loop.body:
            if not isinstance(part, ast.Assign) or not isinstance(part.value, ast.Call):
                continue
            read = {name for value in part.value.args for name in names_loaded(value)}
            before = [loop.target, *loop.body[: loop.body.index(part)]]
            carried = names_bound(part.targets[0]) & read - {name for each in before for name in names_bound(each)}
            if carried and dotted(part.value.func) in program.training.executors:
                yield Hit(part.value, f"{min(carried)!r} is carried from one batch to the next")
