"""Weights read in every iteration are reported as a note."""

from __future__ import annotations

RULE = "weights-read-per-step"


def test_averages_and_state_dicts(lines):
    """Each use brings all weights to the host."""
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
            ema.update(model)
            torch.save(model.state_dict(), 'a')
    """
    assert lines(RULE, code) == [12, 13]


def test_after_the_loop(lines):
    """At the end of an epoch, checkpoints do so."""
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
        torch.save(model.state_dict(), 'a')
    """
    assert lines(RULE, code) == []
