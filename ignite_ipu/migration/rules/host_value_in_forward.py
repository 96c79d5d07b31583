"""Values that forward takes to the host."""

from __future__ import annotations

from ignite_ipu.migration.findings import Hit, Hits, Outcome, Rule, Severity, handled_if
from ignite_ipu.migration.program import Program


def check(program: Program) -> Hits:
    """Find what asks for a value; a move alone is left out where this library calls the model."""
    for fact in program.facts_of("host"):
        message = f"{fact.where} takes a tensor's value to the host with {fact.name}, which a trace does not have"
        yield Hit(fact.node, message, run=handled_if(fact.name in ("cpu", 'to("cpu")')))


RULE = Rule(
    name="host-value-in-forward",
    severity=Severity.ERROR,
    run=Outcome.REFUSED,
    summary="item(), numpy(), tolist(), cpu(), int(tensor) and the like in traced code.",
    rationale=(
        "A traced tensor has no value and cannot be moved to the host; PopTorch stops at compile. A move alone `run`, "
        "captured loops and this library's engines leave out."
    ),
    remedy="Keep the computation in torch operations, or return the tensor and read it outside forward.",
    example="""\
  import torch
  from torch import nn


  class Net(nn.Module):
      def __init__(self):
          super().__init__()
          self.layer = nn.Linear(4, 4)

      def forward(self, x):
          x = self.layer(x)
-         scale = x.abs().max().item()
-         return x / scale
+         return x / x.abs().max()
""",
    check=check,
)
