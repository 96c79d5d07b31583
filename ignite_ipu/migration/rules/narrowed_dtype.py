"""Number types that come back narrower than they are on a GPU."""

from __future__ import annotations

from ignite_ipu.migration.findings import Outcome, Rule, Severity

RULE = Rule(
    name="narrowed-dtype",
    severity=Severity.NOTE,
    run=Outcome.HANDLED,
    summary="int64 and float64 in batches and results, of which an IPU makes int32 and float32.",
    rationale=(
        "An IPU has no 64-bit numbers. Inputs are narrowed without a check, and results come back narrow: an "
        "index beyond 2**31 becomes another one, which is reported as an error where the example batches have "
        "one."
    ),
    remedy="Keep integers below 2**31 and convert results where 64 bits are needed: output.long().",
    example="""\
  import torch
  from torch import nn


  class Net(nn.Module):
      def __init__(self):
          super().__init__()
          self.layer = nn.Linear(4, 4)

      def forward(self, x):
-         return self.layer(x).argmax(1)
+         return self.layer(x)


  def make():
      return Net(), torch.ones(8, 4)
""",
)
