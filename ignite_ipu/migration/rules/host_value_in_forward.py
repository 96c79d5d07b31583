"""Values that forward takes to the host."""

from __future__ import annotations

from typing import Iterator

from ignite_ipu.migration.findings import Hit, Rule, Severity
from ignite_ipu.migration.program import Program


def check(program: Program) -> Iterator[Hit]:
    """Find reads of a tensor's value."""
    for fact in program.facts_of("host"):
        yield Hit(
            fact.node, f"{fact.where} takes a tensor's value to the host with {fact.name}, which a trace does not have"
        )


RULE = Rule(
    name="host-value-in-forward",
    severity=Severity.ERROR,
    summary="item(), numpy(), tolist(), cpu(), int(tensor) and the like in traced code.",
    rationale="A traced tensor has no value and cannot be moved to the host; PopTorch stops at compile.",
    remedy="Keep the computation in torch operations, or return the tensor and read it outside forward.",
    bad="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        x = self.layer(x)
        scale = x.abs().max().item()
        return x / scale
""",
    good="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        x = self.layer(x)
        return x / x.abs().max()
""",
    check=check,
)
