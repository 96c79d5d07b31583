"""Arguments of optimizers that only choose how a GPU computes them."""

from __future__ import annotations

from ignite_ipu.migration.analysis.names import constant
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Rule, Severity
from ignite_ipu.migration.program import Program


def check(program: Program) -> Hits:
    """Find implementation switches on constructions of optimizers."""
    for call, name in program.training.optimizer_calls:
        for keyword in call.keywords:
            if keyword.arg in ("fused", "foreach", "capturable") and constant(keyword.value) is not None:
                yield Hit(keyword.value, f"{keyword.arg} of {name} has no effect on an IPU")


RULE = Rule(
    name="ignored-optimizer-argument",
    severity=Severity.NOTE,
    run=Outcome.HANDLED,
    summary="fused, foreach and capturable.",
    rationale=(
        "The update runs in PopTorch, so they have no effect, and on the host's CPU tensors some torch versions "
        "refuse them."
    ),
    remedy="Leave them out. `ignite-ipu migrate` does it.",
    example="""\
  import torch

- optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
+ optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
""",
    check=check,
)
