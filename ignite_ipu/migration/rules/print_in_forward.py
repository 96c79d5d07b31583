"""Printing and logging from forward."""

from __future__ import annotations

from typing import Iterator

from ignite_ipu.migration.findings import Hit, Rule, Severity
from ignite_ipu.migration.program import Program


def check(program: Program) -> Iterator[Hit]:
    """Find prints and log calls."""
    for fact in program.facts_of("print"):
        yield Hit(
            fact.node, f"{fact.where} calls {fact.name}(), which runs once, while tracing, and has no values to show"
        )


RULE = Rule(
    name="print-in-forward",
    severity=Severity.WARNING,
    summary="print() or logging in traced code.",
    rationale="It happens once, while the model is compiled, and shows `<unavailable>` in place of values.",
    remedy="Return the value and print it on the host, or use poptorch.ipu_print_tensor.",
    bad="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        x = self.layer(x)
        print(x.mean())
        return x
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
        return x, x.mean()
""",
    check=check,
)
