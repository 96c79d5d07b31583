"""Training loaders whose last batch is smaller."""

from __future__ import annotations

import ast
from typing import Iterator

from ignite_ipu.migration.findings import Hit, Rule, Severity
from ignite_ipu.migration.names import argument, constant
from ignite_ipu.migration.program import Program


def check(program: Program) -> Iterator[Hit]:
    """Find loaders that feed training and keep an incomplete batch."""
    for name, (call, _) in sorted(program.training.training_loaders.items()):
        if any(keyword.arg in (None, "batch_sampler") for keyword in call.keywords):
            continue
        if constant(argument(call, "drop_last")) in (..., False) and _is_literal_or_missing(call):
            yield Hit(call, f"{name} is trained from, and its last batch may be smaller")


def _is_literal_or_missing(call: ast.Call) -> bool:
    value = argument(call, "drop_last")
    return value is None or constant(value) is False


RULE = Rule(
    name="ragged-last-batch",
    severity=Severity.WARNING,
    summary="A DataLoader that is trained from without drop_last=True.",
    rationale=(
        "All batches of a compiled program have one shape; the samples of an incomplete last batch are dropped in "
        "training, or the call fails."
    ),
    remedy="Say drop_last=True, so that native runs drop them too. `ignite-ipu migrate` does it.",
    bad="""\
import torch
from torch import nn

model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(data, batch_size=8)
model.train()
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
""",
    good="""\
import torch
from torch import nn

model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(data, batch_size=8, drop_last=True)
model.train()
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
""",
    check=check,
)
