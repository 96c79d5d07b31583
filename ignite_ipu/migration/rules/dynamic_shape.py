"""nonzero, masked_select, unique and boolean indexing in traced code.

Every shape is fixed when the model is compiled, so an operator whose output size depends on values cannot be compiled.

Remedy: Keep the full shape and mask instead: torch.where(mask, x, 0), x * mask, or a loss with ignore_index.

In forward:
      x = self.layer(x)
    - return x[x > 0].sum()
    + return torch.where(x > 0, x, torch.zeros_like(x)).sum()
"""

from __future__ import annotations

import ast

from ignite_ipu.migration.analysis.operators import is_dynamic
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED


def check(program: Program) -> Hits:
    for fact in program.facts_of("mask"):
        source = program.text_of(fact.node)
        yield Hit(
            fact.node, f"{fact.where} selects by a boolean tensor, `{source}`: the result's size depends on values"
        )
    for fact in program.facts_of("call"):
        operator = fact.name.rsplit(".", 1)[-1]
        call = fact.node
        assert isinstance(call, ast.Call)
        if fact.name == "torch.where" and len(call.args) + len(call.keywords) == 1:
            yield Hit(call, f"{fact.where} calls torch.where with a condition only, which is nonzero")
        if is_dynamic(fact.name):
            yield Hit(call, f"{fact.where} calls {operator}, whose output size depends on values")
    for fact in program.facts_of("repeat"):
        yield Hit(fact.node, f"{fact.where} repeats elements as often as a tensor says")
