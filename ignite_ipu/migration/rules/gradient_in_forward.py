"""Gradients that forward computes or hooks into."""

from __future__ import annotations

from ignite_ipu.migration.findings import Outcome, Rule, Severity, each_fact

RULE = Rule(
    name="gradient-in-forward",
    severity=Severity.ERROR,
    run=Outcome.REFUSED,
    summary="backward(), torch.autograd.grad and tensor hooks in traced code.",
    rationale=(
        "Forward and backward are one compiled program; forward cannot start a backward of its own, and hooks on "
        "tensors never run."
    ),
    remedy="Leave gradients to the training step. Gradient penalties and the like are not possible on an IPU.",
    example="""\
  import torch
  from torch import nn


  class Net(nn.Module):
      def __init__(self):
          super().__init__()
          self.layer = nn.Linear(4, 4)

      def forward(self, x):
-         y = self.layer(x).sum()
-         (grad,) = torch.autograd.grad(y, x, create_graph=True)
-         return grad
+         return self.layer(x).sum()
""",
    check=each_fact("gradient", "{where} calls {name}, which does not exist inside a compiled program"),
)
