"""Printing and logging from forward."""

from __future__ import annotations

from ignite_ipu.migration.findings import Outcome, Rule, Severity, each_fact

RULE = Rule(
    name="print-in-forward",
    severity=Severity.WARNING,
    run=Outcome.HANDLED,
    summary="print() or logging in traced code.",
    rationale="It happens once, while the model is compiled, and shows `<unavailable>` in place of values.",
    remedy="Return the value and print it on the host, or use poptorch.ipu_print_tensor.",
    example="""\
  import torch
  from torch import nn


  class Net(nn.Module):
      def __init__(self):
          super().__init__()
          self.layer = nn.Linear(4, 4)

      def forward(self, x):
          x = self.layer(x)
-         print(x.mean())
-         return x
+         return x, x.mean()
""",
    check=each_fact("print", "{where} calls {name}(), which runs once, while tracing, and has no values to show"),
)
