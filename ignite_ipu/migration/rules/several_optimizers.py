"""Several optimizers that step in one training step."""

from __future__ import annotations

import ast
from typing import Dict, List, Tuple

from ignite_ipu.migration.findings import Hit, Hits, Outcome, Rule, Severity
from ignite_ipu.migration.program import Program


def check(program: Program) -> Hits:
    """Find blocks in which a second optimizer steps."""
    groups: Dict[int, List[Tuple[str, ast.Call]]] = {}
    for call, owner in program.method_calls("step"):
        if not owner or not program.training.is_optimizer(owner):
            continue
        loops = list(program.loops_around(call))
        block = loops[0] if loops else program.function_of(call)
        groups.setdefault(id(block), []).append((owner, call))
    for steps in groups.values():
        first = steps[0][0]
        for owner, call in steps:
            if owner != first:
                yield Hit(call, f"{owner} steps in the same training step as {first}")
                break


RULE = Rule(
    name="several-optimizers",
    severity=Severity.ERROR,
    run=Outcome.REFUSED,
    summary="Two or more optimizers stepping in one loop or process function, as in GANs.",
    rationale=(
        "A compiled training program holds one model with one optimizer; steps that alternate cannot be expressed "
        "in it."
    ),
    remedy=(
        "Give one optimizer several parameter groups where the losses can be added up; otherwise train this model "
        "natively."
    ),
    example="""\
  import torch
  from torch import nn

  model = nn.Linear(4, 2)
  criterion = nn.CrossEntropyLoss()
  optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
- head_optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
  model.train()
  for x, y in loader:
      optimizer.zero_grad()
      loss = criterion(model(x), y)
      loss.backward()
      optimizer.step()
-     head_optimizer.step()
""",
    check=check,
)
