"""int64 and float64 in batches and results, of which an IPU makes int32 and float32.

An IPU has no 64-bit numbers. Inputs are narrowed without a check, and results come back narrow: an index beyond 2**31
becomes another one, which is reported as an error where the example batches have one.

Remedy: Keep integers below 2**31 and convert results where 64 bits are needed: output.long().

In forward:
    - return self.layer(x).argmax(1)
    + return self.layer(x)
"""

from __future__ import annotations

from ignite_ipu.migration.findings import Outcome, Severity

SEVERITY, RUN = Severity.NOTE, Outcome.HANDLED
