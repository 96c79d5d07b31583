"""nonzero, masked_select, unique and boolean indexing in traced code.

Every shape is fixed when the model is compiled, so an operator whose output size depends on values cannot be compiled.

Remedy: Keep the full shape and mask instead: torch.where(mask, x, 0), x * mask, or a loss with ignore_index.

In forward:
      x = self.layer(x)
    - return x[x > 0].sum()
    + return torch.where(x > 0, x, torch.zeros_like(x)).sum()
"""

from __future__ import annotations

from ignite_ipu.capabilities.traced import SHAPE
from ignite_ipu.migration.findings import Outcome, Severity, breaches_of, of_traced_code

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED

latent = breaches_of(SHAPE, "mask", "dynamic", "repeat")
check = of_traced_code(latent)
