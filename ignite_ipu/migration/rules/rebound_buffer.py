"""Buffers and parameters that forward replaces by another tensor."""

from __future__ import annotations

from ignite_ipu.migration.findings import Outcome, Rule, Severity, each_fact

RULE = Rule(
    name="rebound-buffer",
    severity=Severity.ERROR,
    run=Outcome.REFUSED,
    summary="Traced code that assigns a new tensor to a registered buffer or parameter.",
    rationale=(
        "PopTorch keeps buffers on the device by their identity and raises when tracing ends with another tensor "
        "in place."
    ),
    remedy="Change the buffer in place: `self.mean.copy_(...)`, `self.mean.mul_(0.9).add_(...)`.",
    example="""\
  import torch
  from torch import nn


  class Net(nn.Module):
      def __init__(self):
          super().__init__()
          self.layer = nn.Linear(4, 4)
          self.register_buffer("mean", torch.zeros(()))

      def forward(self, x):
-         self.mean = 0.9 * self.mean + 0.1 * x.mean()
+         self.mean.mul_(0.9).add_(0.1 * x.mean())
          return self.layer(x)
""",
    check=each_fact("buffer", "{where} puts another tensor in place of the registered self.{name}"),
)
