"""Processes that train one model in shared memory (hogwild)."""

from __future__ import annotations

from ignite_ipu.migration.findings import Hit, Hits, Outcome, Rule, Severity
from ignite_ipu.migration.program import Program


def check(program: Program) -> Hits:
    """Find models that are put in shared memory."""
    for call, _ in program.method_calls("share_memory"):
        if not call.args:
            yield Hit(call, "a model in shared memory cannot be trained by several processes on IPUs")


RULE = Rule(
    name="shared-memory-training",
    severity=Severity.ERROR,
    run=Outcome.REFUSED,
    summary="model.share_memory() and training processes over it.",
    rationale=(
        "Each process would hold a copy of the weights on its own IPU; there are no shared weights to update "
        "without locks."
    ),
    remedy="Train in one process and say options.replicationFactor(n), whose replicas stay in step.",
    example="""\
  import torch

  model = torch.nn.Linear(2, 2)
- model.share_memory()
""",
    check=check,
)
