"""fused, foreach and capturable.

The update runs in PopTorch, so they have no effect, and on the host's CPU tensors some torch versions refuse them.

Remedy: Leave them out. `ignite-ipu migrate` does it.

Example:
      import torch

    - optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    + optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
"""

from __future__ import annotations

from ignite_ipu.capabilities.optimizers import left_out_arguments
from ignite_ipu.migration.analysis.names import constant
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.NOTE, Outcome.HANDLED


def check(program: Program) -> Hits:
    for call, name in program.training.optimizer_calls:
        for keyword in call.keywords:
            if keyword.arg in left_out_arguments() and constant(keyword.value) is not None:
                yield Hit(keyword.value, f"{keyword.arg} of {name} has no effect on an IPU")
