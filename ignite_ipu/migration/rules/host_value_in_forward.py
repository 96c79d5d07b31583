"""item(), numpy(), tolist(), cpu(), int(tensor) and the like in traced code.

A traced tensor has no value and cannot be moved to the host; PopTorch stops at compile. A move alone `run`, captured
loops and this library's engines leave out.

Remedy: Keep the computation in torch operations, or return the tensor and read it outside forward.

In forward:
      x = self.layer(x)
    - scale = x.abs().max().item()
    - return x / scale
    + return x / x.abs().max()
"""

from __future__ import annotations

from typing import Iterable

from ignite_ipu.capabilities.traced import VALUE
from ignite_ipu.migration.analysis.kinds import Fact
from ignite_ipu.migration.findings import Hits, Outcome, Program, Severity, breach_of, of_traced_code

SEVERITY, RUN = Severity.ERROR, Outcome.BY_FUNCTION


def latent(program: Program, facts: Iterable[Fact]) -> Hits:
    """Find reads of values; a move alone is left out if this library calls the model."""
    for fact in facts:
        if fact.kind != "host":
            continue
        moved = Outcome.HANDLED if fact.name in ("cpu", 'to("cpu")') else None
        yield breach_of(fact, VALUE, fact.name, moved)


check = of_traced_code(latent)
