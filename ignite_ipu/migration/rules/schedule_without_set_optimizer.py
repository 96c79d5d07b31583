"""A learning-rate schedule that steps in code with poptorch.trainingModel and without setOptimizer.

The device keeps the values it was given at the first call; scheduler.step() changes the host's optimizer only.

Remedy: Call training_model.setOptimizer(optimizer) after scheduler.step().

Example:
      import poptorch
      import torch

      model = ClassifierWithLoss()
      options = poptorch.Options()
      optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
      scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
      training_model = poptorch.trainingModel(model, options, optimizer)
      for x, y in loader:
          out, loss = training_model(x, y)
      scheduler.step()
    + training_model.setOptimizer(optimizer)
"""

from __future__ import annotations

import ast

from ignite_ipu.migration.analysis.names import method_calls, walk
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.UNCHANGED


def check(program: Program) -> Hits:
    if not program.training.named("poptorch.trainingModel"):
        return
    for call, owner in program.method_calls("step"):
        if owner in program.training.schedulers and not _sent(program, call):
            yield Hit(call, f"{owner}.step() is not followed by setOptimizer")


def _sent(program: Program, step: ast.Call) -> bool:
    scope = program.function_of(step)
    in_loop = next(program.loops_around(step), None) is not None
    sent = method_calls(walk(scope if scope is not None else program.tree), "setOptimizer")
    return any(in_loop or call.lineno >= step.lineno for call, _ in sent)
