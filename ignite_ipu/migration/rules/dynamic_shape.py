"""nonzero, masked_select, unique and boolean indexing in traced code.

Every shape is fixed when the model is compiled, so an operator whose output size depends on values cannot be compiled.

Remedy: Keep the full shape and mask instead: torch.where(mask, x, 0), x * mask, or a loss with ignore_index.

In forward:
      x = self.layer(x)
    - return x[x > 0].sum()
    + return torch.where(x > 0, x, torch.zeros_like(x)).sum()
"""

from __future__ import annotations

from ignite_ipu.migration.findings import Hits, Outcome, Program, Severity, hit_of

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED


def check(program: Program) -> Hits:
    for fact in program.facts_of("mask"):
        source = program.text_of(fact.node)
        yield hit_of(fact, f"{fact.where} selects by a boolean tensor, `{source}`: the result's size depends on values")
    for fact in program.facts_of("dynamic"):
        operator = fact.name.rsplit(".", 1)[-1]
        if operator == "where":
            yield hit_of(fact, f"{fact.where} calls torch.where with a condition only, which is nonzero")
        else:
            yield hit_of(fact, f"{fact.where} calls {operator}, whose output size depends on values")
    for fact in program.facts_of("repeat"):
        yield hit_of(fact, f"{fact.where} repeats elements as often as a tensor says")
