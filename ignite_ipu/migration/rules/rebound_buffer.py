"""Traced code that assigns a new tensor to a registered buffer or parameter, or writes into one of whole numbers.

PopTorch keeps buffers on the device by their identity and raises when tracing ends with another tensor in place.
Buffers of integers and booleans are constants of the program.

Remedy: Change the buffer in place: `self.mean.copy_(...)`, `self.mean.mul_(0.9).add_(...)`. Count in a floating-point
buffer.

In __init__:
      self.register_buffer("mean", torch.zeros(()))

In forward:
    - self.mean = 0.9 * self.mean + 0.1 * x.mean()
    + self.mean.mul_(0.9).add_(0.1 * x.mean())
      return self.layer(x)
"""

from __future__ import annotations

from ignite_ipu.capabilities.traced import REPLACED, WHOLE
from ignite_ipu.migration.findings import Hits, Outcome, Program, Severity, each_breach

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED

_replaced, _written = each_breach(REPLACED, "buffer"), each_breach(WHOLE, "whole")


def check(program: Program) -> Hits:
    yield from _replaced(program)
    yield from _written(program)
