"""Failures of the compilation that have no rule of their own."""

from __future__ import annotations

from ignite_ipu.migration.findings import Outcome, Rule, Severity

RULE = Rule(
    name="failed-trace",
    severity=Severity.ERROR,
    run=Outcome.REFUSED,
    summary="Whatever else stops a model from compiling.",
    rationale=(
        "The model was compiled on the emulator of PopTorch and that failed, as it would on an IPU; the "
        "message is the compiler's."
    ),
    remedy="Do what the message says, and check again.",
    example="""\
  import torch
  from torch import nn


  class Net(nn.Module):
      def __init__(self):
          super().__init__()
          self.layer = nn.Linear(4, 4)

      def forward(self, x):
-         return self.layer(x).tolist
+         return self.layer(x)


  def make():
      return Net(), torch.ones(8, 4)
""",
)
