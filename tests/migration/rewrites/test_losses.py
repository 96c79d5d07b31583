"""A loss that is an expression becomes a function in front of the code that holds the step."""

from __future__ import annotations

REWRITE = "losses"


def test_tuples_of_outputs(rewritten):
    """Several outputs and several targets are unpacked."""
    before = """\
import torch
from torch import nn
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for x, y, w in loader:
    optimizer.zero_grad()
    a, b = model(x)
    loss = criterion(a, y) + 0.5 * (w * b).mean()
    loss.backward()
    optimizer.step()
"""
    after = """\
import torch
from torch import nn
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()


def training_loss(outputs, targets):
    a, b = outputs
    w, y = targets
    return criterion(a, y) + 0.5 * (w * b).mean()


for x, y, w in loader:
    optimizer.zero_grad()
    a, b = model(x)
    loss = training_loss((a, b), (w, y))
    loss.backward()
    optimizer.step()
"""
    assert rewritten(REWRITE, before) == after


def test_plain_losses(rewritten):
    """loss_fn(output, target) needs no function."""
    before = """\
import torch
from torch import nn
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
"""
    assert rewritten(REWRITE, before) == before


def test_names_that_are_taken(rewritten):
    """The file's own training_loss stays its own."""
    before = """\
import torch
from torch import nn
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
training_loss = 0
for x, y in loader:
    optimizer.zero_grad()
    out = model(x)
    loss = criterion(out[0], y)
    loss.backward()
    optimizer.step()
"""
    after = """\
import torch
from torch import nn
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
training_loss = 0


def training_loss_2(out, y):
    return criterion(out[0], y)


for x, y in loader:
    optimizer.zero_grad()
    out = model(x)
    loss = training_loss_2(out, y)
    loss.backward()
    optimizer.step()
"""
    assert rewritten(REWRITE, before) == after
