"""backward(), torch.autograd.grad and tensor hooks in traced code.

Forward and backward are one compiled program; forward cannot start a backward of its own, and hooks on tensors never
run.

Remedy: Leave gradients to the training step. Gradient penalties and the like are not possible on an IPU.

In forward:
    - y = self.layer(x).sum()
    - (grad,) = torch.autograd.grad(y, x, create_graph=True)
    - return grad
    + return self.layer(x).sum()
"""

from __future__ import annotations

from ignite_ipu.capabilities.traced import GRADIENT
from ignite_ipu.migration.findings import Outcome, Severity, each_breach

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED

check = each_breach(GRADIENT, "gradient")
