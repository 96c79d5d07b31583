"""Values that forward takes to the host."""

from __future__ import annotations

from ignite_ipu.migration.findings import Outcome, Rule, Severity, each_fact

RULE = Rule(
    name="host-value-in-forward",
    severity=Severity.ERROR,
    run=Outcome.REFUSED,
    summary="item(), numpy(), tolist(), cpu(), int(tensor) and the like in traced code.",
    rationale="A traced tensor has no value and cannot be moved to the host; PopTorch stops at compile.",
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
    check=each_fact("host", "{where} takes a tensor's value to the host with {name}, which a trace does not have"),
)
