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

from ignite_ipu.migration.findings import Hits, Outcome, Program, Severity, hit_of

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED


def check(program: Program) -> Hits:
    for fact in program.facts_of("truth", "count"):
        what = "is decided by" if fact.kind == "truth" else "repeats by"
        source = program.text_of(fact.node)
        yield hit_of(fact, f"{fact.where} {what} the value of a tensor, `{source}`, which a trace does not have")
