"""Python state that forward changes."""

from __future__ import annotations

from typing import Iterator

from ignite_ipu.migration.findings import Hit, Rule, Severity
from ignite_ipu.migration.program import Program


def check(program: Program) -> Iterator[Hit]:
    """Find writes to Python state in traced code."""
    for fact in program.facts_of("mutation"):
        yield Hit(fact.node, f"{fact.where} changes {fact.name}; that happens once, while tracing, and never again")


RULE = Rule(
    name="mutated-python-state",
    severity=Severity.WARNING,
    summary="Traced code that assigns attributes, fills containers or writes globals.",
    rationale=(
        "forward runs once, when the model is compiled: a counter it increments stays where the trace left it, "
        "and what it assigns to self lands on PopTorch's copy of the model."
    ),
    remedy=(
        "Register a tensor with register_buffer and change it in place (`self.steps.add_(1)`), or return the "
        "value from forward."
    ),
    bad="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x)
""",
    good="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1.0)
        return self.layer(x)
""",
    check=check,
)
