"""An optimizer that steps on some batches only is reported."""

from __future__ import annotations

RULE = "accumulation-by-hand"


def test_every_fourth(lines):
    """The usual modulo."""
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
            if i % 4 == 0:
                optimizer.step()
    """
    assert lines(RULE, code) == [11]


def test_every_batch(lines):
    """A step per batch is none."""
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
    """
    assert lines(RULE, code) == []
