"""Losses that are no means are reported where a model is trained with them."""

from __future__ import annotations

RULE = "loss-reduction"


def test_modules_and_functions(lines):
    """Both forms of a summed loss."""
    code = """
        import torch
        from torch import nn
        model = nn.Linear(4, 2)
        criterion = nn.CrossEntropyLoss(reduction="sum")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            F = torch.nn.functional.mse_loss(x, y, reduction='none')
    """
    assert lines(RULE, code) == [4, 12]


def test_evaluation_sums_freely(lines):
    """A summed loss under no_grad is a statistic."""
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
        with torch.no_grad():
            total = nn.functional.cross_entropy(a, b, reduction='sum')
    """
    assert lines(RULE, code) == []


def test_no_training(lines):
    """A file that does not train may define what it likes."""
    code = """
        from torch import nn
        l = nn.MSELoss(reduction='sum')
    """
    assert lines(RULE, code) == []
