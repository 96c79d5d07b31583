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

from ignite_ipu.migration.findings import Hits, Outcome, Program, Severity, each_fact

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED

_rebound = each_fact("buffer", "{where} puts another tensor in place of the registered self.{name}")
_written = each_fact("whole", "{where} writes into self.{name}, a buffer of whole numbers, which is a constant")


def check(program: Program) -> Hits:
    yield from _rebound(program)
    yield from _written(program)
