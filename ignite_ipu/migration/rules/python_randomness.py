"""random.* and numpy.random.* in traced code.

The number is drawn once, while tracing, and is a constant of the compiled program from then on.

Remedy: Draw with torch (torch.rand, Tensor.bernoulli_), whose generators run on the device.

Example:
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
"""

from __future__ import annotations

from ignite_ipu.capabilities.traced import STATE
from ignite_ipu.migration.findings import Outcome, Severity, breaches_of, of_traced_code

SEVERITY, RUN = Severity.WARNING, Outcome.BY_FUNCTION

latent = breaches_of(STATE, "random")
check = of_traced_code(latent)
