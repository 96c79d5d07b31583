"""Reading the loss in every iteration is reported as a note."""

from __future__ import annotations

RULE = "value-per-iteration"


def test_every_iteration(lines):
    """It keeps the host in the loop."""
    code = """
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
            total = loss.item()
    """
    assert lines(RULE, code) == [12]


def test_now_and_then(lines):
    """Every tenth iteration is fine."""
    code = """
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
            if i % 10 == 0:
                print(loss.item())
    """
    assert lines(RULE, code) == []
