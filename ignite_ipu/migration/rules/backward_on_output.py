"""loss.backward() or optimizer.step() in a loop that calls a training executor.

The call of the executor has done forward, backward and update; backward() on its output raises, and the optimizer's
step() has nothing to do.

Remedy: Delete backward(), step() and zero_grad().

Example:
      import poptorch
      import torch

      model = ClassifierWithLoss()
      options = poptorch.Options()
      optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
      training_model = poptorch.trainingModel(model, options, optimizer)
      for x, y in loader:
          out, loss = training_model(x, y)
    -     loss.backward()
"""

from __future__ import annotations

import ast

from ignite_ipu.migration.analysis.names import dotted, method_calls, walk
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED


def check(program: Program) -> Hits:
    executors = program.training.named("poptorch.trainingModel")
    for loop in program.nodes(ast.For):
        if not any(isinstance(part, ast.Call) and dotted(part.func) in executors for part in walk(loop)):
            continue
        inside = [node for node in walk(loop) if next(program.loops_around(node), None) is loop]
        for call, _ in method_calls(inside, "backward"):
            yield Hit(call, "backward() on the output of an executor raises")
        for method in ("step", "zero_grad"):
            for call, owner in method_calls(inside, method):
                if owner in program.training.optimizers:
                    yield Hit(call, f"{method}() does nothing but bring the weights to the host in every iteration")
