"""Traced code that assigns a parameter, or a buffer a tensor of another shape, or writes into one of whole numbers.

A device keeps the tensors that the program was compiled with. A buffer that gets a tensor of its own shape and type,
without gradients, is written in place. PopTorch by itself raises for it, too. Buffers of integers and booleans are
constants of the program. A flag in one may be set by the first call: the host makes it before anything is compiled.

Remedy: Give the buffer its longest shape, and change it in place: `self.seen.copy_(...)`. Count in a floating-point
buffer.

In __init__:
      self.register_buffer("seen", torch.zeros(1, 4))

In forward:
    - self.seen = torch.cat([self.seen, x[:1]])
    + self.seen.mul_(0.9).add_(0.1 * x[:1])
      return self.layer(x)
"""

from __future__ import annotations

from ignite_ipu.capabilities.traced import REPLACED, WHOLE
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity, each_breach

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED

_replaced, _written = each_breach(REPLACED, "rebound"), each_breach(WHOLE, "whole")


def check(program: Program) -> Hits:
    yield from _replaced(program)
    for fact in program.facts:
        if fact.kind == "assigned":
            text = f"{fact.where} assigns self.{fact.name}: a tensor of its shape and type, without gradients, trains"
            yield Hit(fact.node, text, severity=Severity.NOTE, run=Outcome.OPEN)
    yield from _written(program)
