"""The statements of a step become one call; comments between them stay."""

from __future__ import annotations

REWRITE = "training-steps"


def test_comments_and_order(rewritten):
    """zero_grad after the step, comments above and beside, readings in between."""
    before = """\
import torch
from torch import nn
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for x, y in loader:
    # forward
    output = model(x)  # logits
    loss = criterion(output, y)
    # backward
    loss.backward()
    total += loss.item()
    optimizer.step()  # update
    optimizer.zero_grad()
    seen += 1
"""
    after = """\
import torch
from torch import nn
from ignite_ipu import ipu_train_batch
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for x, y in loader:
    # forward
    # backward
    # update
    output, loss = ipu_train_batch(model, optimizer, criterion, x, target=y)  # logits
    total += loss.item()
    seen += 1
"""
    assert rewritten(REWRITE, before) == after


def test_outputs_that_are_not_kept(rewritten):
    """A nested forward binds its output to `_`."""
    before = """\
import torch
from torch import nn
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x, mask=m), y.long())
    loss.backward()
    optimizer.step()
"""
    after = """\
import torch
from torch import nn
from ignite_ipu import ipu_train_batch
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for x, y in loader:
    _, loss = ipu_train_batch(model, optimizer, criterion, x, mask=m, target=y.long())
"""
    assert rewritten(REWRITE, before) == after


def test_refused_steps(rewritten):
    """A step that is not understood."""
    before = """\
import torch
from torch import nn
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for x, y in loader:
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
"""
    assert rewritten(REWRITE, before) == before
