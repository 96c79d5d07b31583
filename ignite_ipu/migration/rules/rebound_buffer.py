"""Traced code that assigns or writes a parameter, or assigns a buffer a tensor of another shape.

A device keeps the tensors that the program was compiled with. A buffer that gets a tensor of its own shape and type,
without gradients, is written in place. PopTorch by itself raises for it, too. Buffers of integers and booleans that
forward writes are carried from call to call; over several IPUs for a layer within one stage. A flag in one may be set
by the first call: the host makes it before anything is compiled. A momentum encoder that follows in forward writes into
weights.

Remedy: Give the buffer its longest shape, and change it in place: `self.seen.copy_(...)`. Write
weights in the loop, under torch.no_grad(), before the model is called.

In __init__:
      self.register_buffer("seen", torch.zeros(1, 4))

In forward:
    - self.seen = torch.cat([self.seen, x[:1]])
    + self.seen.mul_(0.9).add_(0.1 * x[:1])
      return self.layer(x)
"""

from __future__ import annotations

from ignite_ipu.capabilities.traced import REPLACED, WEIGHT
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity, breach_of, each_breach

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED

_replaced = each_breach(REPLACED, "rebound")


def check(program: Program) -> Hits:
    yield from _replaced(program)
    for fact in program.facts_of("written"):
        yield breach_of(fact, WEIGHT, program.detail_of(fact), Outcome.BY_FUNCTION)
    for fact in program.facts:
        if fact.kind == "assigned":
            text = f"{fact.where} assigns self.{fact.name}: a tensor of its shape and type, without gradients, trains"
            yield Hit(fact.node, text, severity=Severity.NOTE, run=Outcome.OPEN)
        elif fact.kind == "whole":
            text = f"{fact.where} writes self.{fact.name}, integers or booleans: it trains on one IPU, not over several"
            yield Hit(fact.node, text, severity=Severity.NOTE, run=Outcome.OPEN)
