"""Buffers and parameters that forward replaces by another tensor."""

from __future__ import annotations

from typing import Iterator

from ignite_ipu.migration.findings import Hit, Rule, Severity
from ignite_ipu.migration.program import Program


def check(program: Program) -> Iterator[Hit]:
    """Find assignments to buffers and parameters."""
    for fact in program.facts_of("buffer"):
        yield Hit(fact.node, f"{fact.where} puts another tensor in place of the registered self.{fact.name}")


RULE = Rule(
    name="rebound-buffer",
    severity=Severity.ERROR,
    summary="Traced code that assigns a new tensor to a registered buffer or parameter.",
    rationale=(
        "PopTorch keeps buffers on the device by their identity and raises when tracing ends with another tensor "
        "in place."
    ),
    remedy="Change the buffer in place: `self.mean.copy_(...)`, `self.mean.mul_(0.9).add_(...)`.",
    bad="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean()
        return self.layer(x)
""",
    good="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        self.mean.mul_(0.9).add_(0.1 * x.mean())
        return self.layer(x)
""",
    check=check,
)
