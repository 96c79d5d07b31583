"""Gradient accumulation written out by hand."""

from __future__ import annotations

import ast
from typing import Iterator

from ignite_ipu.migration.findings import Hit, Rule, Severity
from ignite_ipu.migration.program import Program


def check(program: Program) -> Iterator[Hit]:
    """Find optimizer steps under a condition that counts batches."""
    for step in program.training.steps:
        if step.plan is None and isinstance(step.blame, ast.If) and "accumulated" in step.reason:
            yield Hit(step.blame.test, "the optimizer steps on some batches only; on an IPU every call is an update")


RULE = Rule(
    name="accumulation-by-hand",
    severity=Severity.ERROR,
    summary="An optimizer that steps on some batches only, and losses divided for that.",
    rationale=(
        "Gradients are accumulated on the device; every call ends with an update, and gradients do not survive "
        "from one call to the next."
    ),
    remedy=(
        "Say options.Training.gradientAccumulation(n), or gradient_accumulation_steps=n of create_ipu_trainer, "
        "and leave the division out."
    ),
    example="""\
  import torch
  from torch import nn

  model = nn.Linear(4, 2)
  criterion = nn.CrossEntropyLoss()
  optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
  model.train()
  for x, y in loader:
+     optimizer.zero_grad()
      loss = criterion(model(x), y)
      loss.backward()
-     if step % 4 == 0:
-         optimizer.step()
-         optimizer.zero_grad()
+     optimizer.step()
""",
    check=check,
)
