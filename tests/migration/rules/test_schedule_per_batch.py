"""A schedule that steps with every batch is reported as a note."""

from __future__ import annotations

RULE = "schedule-per-batch"


def test_in_the_loop(lines):
    """Beside the optimizer's step."""
    code = """
        import torch
        from torch import nn
        model = nn.Linear(4, 2)
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.train()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
    """
    assert lines(RULE, code) == [13]


def test_after_the_loop(lines):
    """Once per epoch is fine."""
    code = """
        import torch
        from torch import nn
        model = nn.Linear(4, 2)
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.train()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        scheduler.step()
    """
    assert lines(RULE, code) == []
