"""Python control flow in traced code that depends on a tensor's value.

An IPU compiles one traced run of forward, in which tensors have no values: `if x.sum() > 0` cannot be decided, and
PopTorch stops at compile.

Remedy: Compute both sides and choose with torch.where, or decide from shapes, arguments or self.training, which are
known.

In forward:
      x = self.layer(x)
    - if x.mean() > 0:
    -     x = -x
    - return x
    + return torch.where(x.mean() > 0, -x, x)
"""

from __future__ import annotations

from ignite_ipu.capabilities.traced import VALUE
from ignite_ipu.migration.findings import Outcome, Severity, breaches_of, of_traced_code

SEVERITY, RUN = Severity.ERROR, Outcome.BY_FUNCTION

latent = breaches_of(VALUE, "truth", "count")
check = of_traced_code(latent)
