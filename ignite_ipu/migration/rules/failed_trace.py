"""A model that does not compile, for a reason without a rule of its own.

The model was compiled on the emulator of PopTorch and that failed, as it would on an IPU; the message is the
compiler's.

Remedy: Follow the message, and check again.

In forward:
    - return self.layer(x).tolist
    + return self.layer(x)
"""

from __future__ import annotations

from ignite_ipu.migration.findings import Outcome, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED
