"""model.share_memory() and training processes over it.

Each process would hold a copy of the weights on its own IPU; there are no shared weights to update without locks.

Remedy: Train in one process and say options.replicationFactor(n), whose replicas stay in step.

Example:
      import torch

      model = torch.nn.Linear(2, 2)
    - model.share_memory()
"""

from __future__ import annotations

from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED


def check(program: Program) -> Hits:
    for call, _ in program.method_calls("share_memory"):
        if not call.args:
            yield Hit(call, "a model in shared memory cannot be trained by several processes on IPUs")
