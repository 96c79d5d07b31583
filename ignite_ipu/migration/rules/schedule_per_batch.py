"""scheduler.step() inside the loop over batches.

Each change of a value has to be sent to the device, and with deviceIterations above 1 only every so many updates can
see one.

Remedy: Step once per epoch, or keep deviceIterations at 1.

Before the loop:
      scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)

In the loop:
      optimizer.step()
    - scheduler.step()

After the loop:
    + scheduler.step()
"""

from __future__ import annotations

from ignite_ipu.migration.analysis.names import method_calls, walk
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.NOTE, Outcome.HANDLED


def check(program: Program) -> Hits:
    schedules = program.training.schedulers
    for backward in program.training.backwards:
        loop = next(program.loops_around(backward), None)
        for call, owner in method_calls(walk(loop) if loop is not None else (), "step"):
            if owner in schedules and next(program.loops_around(call), None) is loop:
                yield Hit(call, f"{owner} changes the learning rate with every batch")
