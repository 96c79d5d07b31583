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


def test_losses_of_the_output_alone(rewritten):
    """There is no target, which is None then."""
    before = """\
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for a, b in loader:
    optimizer.zero_grad()
    first, second = model(a, b)
    loss = info_nce(first, second, temperature=0.1)
    loss.backward()
    optimizer.step()
"""
    after = """\
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()


def training_loss(outputs, _):
    first, second = outputs
    return info_nce(first, second, temperature=0.1)


for a, b in loader:
    optimizer.zero_grad()
    first, second = model(a, b)
    loss = training_loss((first, second), None)
    loss.backward()
    optimizer.step()
"""
    assert rewritten(REWRITE, before) == after


def test_losses_that_a_model_returns(rewritten):
    """They are no function of anything."""
    before = """\
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in loader:
    optimizer.zero_grad()
    outputs = model(**batch)
    loss = outputs.loss
    loss.backward()
    optimizer.step()
"""
    assert rewritten(REWRITE, before) == before


def test_losses_of_several_statements_in_a_function(rewritten):
    """The function stands where it sees the criterion; the statements and their comments go into it."""
    before = """\
import torch


def train(model, criterion, optimizer, loader, beta):
    model.train()
    for data, target in loader:
        optimizer.zero_grad()
        recon, mu, logvar = model(data)
        # reconstruction
        bce = criterion(recon, data)
        kld = -0.5 * torch.mean(
            1 + logvar - mu.pow(2) - logvar.exp()
        )  # divergence
        loss = bce + beta * kld
        loss.backward()
        optimizer.step()
"""
    after = """\
import torch


def train(model, criterion, optimizer, loader, beta):
    model.train()

    def training_loss(outputs, data):
        recon, mu, logvar = outputs
        # reconstruction
        bce = criterion(recon, data)
        # divergence
        kld = -0.5 * torch.mean(
            1 + logvar - mu.pow(2) - logvar.exp()
        )
        return bce + beta * kld

    for data, target in loader:
        optimizer.zero_grad()
        recon, mu, logvar = model(data)
        loss = training_loss((recon, mu, logvar), data)
        loss.backward()
        optimizer.step()
"""
    assert rewritten(REWRITE, before) == after


def test_a_sum_in_parentheses_keeps_them_and_its_comments(rewritten):
    before = """\
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    output = model(x)
    loss = (  # both
        output.sum()  # one
        + criterion(output, y)  # two
    )
    loss.backward()
    optimizer.step()
"""
    after = """\
def training_loss(output, y):
    # both
    # two
    return (output.sum()  # one
        + criterion(output, y))
"""
    assert after in rewritten(REWRITE, before)
