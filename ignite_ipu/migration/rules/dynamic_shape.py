"""nonzero, masked_select, unique and boolean indexing in traced code.

Every shape is fixed when the model is compiled, so an operator whose output size depends on values cannot be compiled.

Remedy: Keep the full shape and mask instead: torch.where(mask, x, 0), x * mask, or a loss with ignore_index.

In forward:
      x = self.layer(x)
    - return x[x > 0].sum()
    + return torch.where(x > 0, x, torch.zeros_like(x)).sum()
"""

from __future__ import annotations

from typing import Iterable

from ignite_ipu.capabilities.traced import SHAPE
from ignite_ipu.migration.analysis.kinds import Fact
from ignite_ipu.migration.findings import Hits, Outcome, Program, Severity, breach_of, of_traced_code

SEVERITY, RUN = Severity.ERROR, Outcome.BY_FUNCTION


def latent(program: Program, facts: Iterable[Fact]) -> Hits:
    """Find them; `run` refuses repetitions, of which the loop, too, does not know the shape."""
    for fact in facts:
        if fact.kind in ("mask", "dynamic", "repeat"):
            run = Outcome.REFUSED if fact.kind == "repeat" else None
            yield breach_of(fact, SHAPE, program.detail_of(fact), run)


check = of_traced_code(latent)
