"""Weights that host code reads after every step."""

from __future__ import annotations

import ast
from typing import Iterator, Sequence, Set

from ignite_ipu.migration.analysis.names import dotted
from ignite_ipu.migration.findings import Hit, Rule, Severity
from ignite_ipu.migration.program import Program


def check(program: Program) -> Iterator[Hit]:
    """Find uses of all weights in the loop of a training step."""
    for step in program.training.steps:
        loop = next(program.loops_around(step.backward), None)
        if loop is None or step.plan is None:
            continue
        for part in ast.walk(loop):
            if not (isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute)):
                continue
            if next(program.loops_around(part), None) is not loop or part in _own_calls(step.plan.replaced):
                continue
            reads = part.func.attr in ("state_dict", "parameters", "named_parameters") and (
                dotted(part.func.value) == step.plan.model
            )
            averages = any(dotted(value) == step.plan.model for value in part.args)
            if reads or averages:
                yield Hit(part, f"the weights of {step.plan.model} are brought to the host in every iteration")


def _own_calls(statements: Sequence[ast.stmt]) -> Set[ast.AST]:
    return {part for statement in statements for part in ast.walk(statement)}


RULE = Rule(
    name="weights-read-per-step",
    severity=Severity.NOTE,
    summary="Averaged copies of a model (EMA, SWA) updated in the training loop, and weights looked at there.",
    rationale="The newest weights are on the device; touching them on the host brings all of them back, each time.",
    remedy="Average at the end of an epoch, or every N iterations.",
    example="""\
  import torch
  from torch import nn

  model = nn.Linear(4, 2)
  criterion = nn.CrossEntropyLoss()
  optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
  average = torch.optim.swa_utils.AveragedModel(model)
  model.train()
  for x, y in loader:
      optimizer.zero_grad()
      loss = criterion(model(x), y)
      loss.backward()
      optimizer.step()
-     average.update_parameters(model)
+ average.update_parameters(model)
""",
    check=check,
)
