"""accelerate's Accelerator.

It prepares models and optimizers for the host or a GPU; on a machine with IPUs it trains on the host.

Remedy: Use IPUAccelerator, which takes the same arguments. `ignite-ipu migrate` does it.

Example:
    - from accelerate import Accelerator
    + from ignite_ipu import IPUAccelerator

    - accelerator = Accelerator()
    + accelerator = IPUAccelerator()
      model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
"""

from __future__ import annotations

from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.HANDLED
REWRITTEN = True


def check(program: Program) -> Hits:
    for call, _ in program.calls("accelerate.Accelerator", "accelerate.accelerator.Accelerator"):
        yield Hit(call, "an Accelerator trains on the host, not on an IPU")
