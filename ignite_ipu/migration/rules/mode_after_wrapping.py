"""PopTorch code that sets a model's mode after wrapping it."""

from __future__ import annotations

import ast
from typing import Dict, Iterator

from ignite_ipu.migration.analysis.names import argument, dotted, owner_of
from ignite_ipu.migration.findings import Hit, Rule, Severity
from ignite_ipu.migration.program import Program


def check(program: Program) -> Iterator[Hit]:
    """Find mode changes of wrapped models later in the same function."""
    wrapped: Dict[str, ast.Call] = {}
    for call, _ in program.training.executors.values():
        model = argument(call, "model", 0)
        name = dotted(model) if model is not None else None
        if name is not None:
            wrapped[name] = call
    for call in program.nodes(ast.Call):
        name = owner_of(call, "train", "eval")
        if name not in wrapped or program.function_of(call) is not program.function_of(wrapped[name]):
            continue
        if call.lineno > wrapped[name].lineno:
            yield Hit(call, f"the mode of {name} is set after {name} was wrapped")


RULE = Rule(
    name="mode-after-wrapping",
    severity=Severity.WARNING,
    summary="model.train() or model.eval() after poptorch.trainingModel or inferenceModel.",
    rationale=(
        "The wrapper took a shallow copy and reads the flags of the layers at its first call: a mode set in "
        "between reaches the layers but not the copy, and one set later nothing at all."
    ),
    remedy="Set the mode before wrapping. `ignite-ipu migrate` does it where the two stand together.",
    example="""\
  import poptorch
  import torch

  model = torch.nn.Linear(4, 2)
  options = poptorch.Options()
  optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
+ model.eval()
  inference_model = poptorch.inferenceModel(model, options)
- model.eval()
""",
    check=check,
)
