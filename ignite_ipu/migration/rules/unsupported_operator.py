"""Operators and layers that PopTorch's table of supported ones lacks."""

from __future__ import annotations

from typing import Iterator

from ignite_ipu.migration.findings import Hit, Rule, Severity
from ignite_ipu.migration.operators import is_supported
from ignite_ipu.migration.program import Program


def check(program: Program) -> Iterator[Hit]:
    """Find operators that PopTorch's lists lack."""
    for fact in program.facts_of("call"):
        if not is_supported(fact.name):
            yield Hit(fact.node, f"{fact.where} uses {fact.name}, which PopTorch does not list as supported")
    for model in program.models:
        for name, value in sorted(model.values.items()):
            layer = program.names.called(value)
            if layer is not None and layer.startswith("torch.nn.") and not is_supported(layer):
                yield Hit(value, f"{model.name}.{name} is a {layer}, which PopTorch does not list as supported")


RULE = Rule(
    name="unsupported-operator",
    severity=Severity.WARNING,
    summary="A torch operator or layer in traced code that PopTorch does not list as supported.",
    rationale=(
        "An operator without an implementation for the device stops the compilation. The table is not complete "
        "for operators that are composed of others, so this is a warning."
    ),
    remedy=(
        "Rewrite it with supported operators, or run the model once on the emulator (`ignite-ipu check --run`) to "
        "be sure."
    ),
    bad="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.linalg.svd(self.layer(x)).S
""",
    good="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.linalg.norm(self.layer(x))
""",
    check=check,
)
