"""Values of the host that a trace makes constants of the program."""

from __future__ import annotations

from ignite_ipu.migration.findings import Outcome, Rule, Severity

RULE = Rule(
    name="captured-constant",
    severity=Severity.WARNING,
    run=Outcome.HANDLED,
    summary="Numbers and tensors of the host that become constants of the compiled program.",
    rationale=(
        "A trace keeps the values that it meets. What the program reads from Python while it is compiled, it "
        "computes with in every call, whatever becomes of it later. A value that differs between two traces "
        "is an error, a number read from an attribute a note."
    ),
    remedy=(
        "Make it an input or a floating-point buffer of the model, or compute it with torch from these. A "
        "constant that never changes may stay."
    ),
    example="""\
  import torch
  from torch import nn


  class Net(nn.Module):
      def __init__(self):
          super().__init__()
          self.layer = nn.Linear(4, 4)
-         self.mask = torch.ones(4)
+         self.register_buffer("mask", torch.ones(4))

      def forward(self, x):
-         return self.layer(x) * self.mask.to(x.device)
+         return self.layer(x) * self.mask


  def make():
      return Net(), torch.ones(8, 4)
""",
)
