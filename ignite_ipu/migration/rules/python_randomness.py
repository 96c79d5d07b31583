"""Random numbers that forward draws from Python or numpy."""

from __future__ import annotations

from typing import Iterator

from ignite_ipu.migration.findings import Hit, Rule, Severity
from ignite_ipu.migration.program import Program


def check(program: Program) -> Iterator[Hit]:
    """Find draws from Python's and numpy's generators."""
    for fact in program.facts_of("random"):
        yield Hit(fact.node, f"{fact.where} draws from {fact.name}; the number drawn while tracing is used for ever")


RULE = Rule(
    name="python-randomness",
    severity=Severity.WARNING,
    summary="random.* and numpy.random.* in traced code.",
    rationale=("The number is drawn once, while tracing, and is a constant of the compiled program from then on."),
    remedy="Draw with torch (torch.rand, Tensor.bernoulli_), whose generators run on the device.",
    bad="""\
import random

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        noise = random.random()
        return self.layer(x) + noise
""",
    good="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        noise = torch.rand(1)
        return self.layer(x) + noise
""",
    check=check,
)
