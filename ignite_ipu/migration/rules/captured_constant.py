"""Numbers and tensors of the host that become constants of the compiled program.

A trace keeps the values that it meets. The program computes in every call with the values that it read from Python when
it was compiled. A value that differs between two traces is an error, a number read from an attribute a note.

Remedy: Make it an input or a floating-point buffer of the model, or compute it with torch from these. A constant that
never changes may stay.

In __init__:
    - self.mask = torch.ones(4)
    + self.register_buffer("mask", torch.ones(4))

In forward:
    - return self.layer(x) * self.mask.to(x.device)
    + return self.layer(x) * self.mask
"""

from __future__ import annotations

from ignite_ipu.migration.findings import Outcome, Severity

SEVERITY, RUN = Severity.WARNING, Outcome.HANDLED
