"""Random numbers that forward draws from Python or numpy."""

from __future__ import annotations

from ignite_ipu.migration.findings import Outcome, Rule, Severity, each_fact

RULE = Rule(
    name="python-randomness",
    severity=Severity.WARNING,
    run=Outcome.REFUSED,
    summary="random.* and numpy.random.* in traced code.",
    rationale="The number is drawn once, while tracing, and is a constant of the compiled program from then on.",
    remedy="Draw with torch (torch.rand, Tensor.bernoulli_), whose generators run on the device.",
    example="""\
- import random
-
  import torch
  from torch import nn


  class Net(nn.Module):
      def __init__(self):
          super().__init__()
          self.layer = nn.Linear(4, 4)

      def forward(self, x):
-         noise = random.random()
+         noise = torch.rand(1)
          return self.layer(x) + noise
""",
    check=each_fact("random", "{where} draws from {name}; the number drawn while tracing is used for ever"),
)
