"""Training loaders that keep an incomplete batch are reported."""

from __future__ import annotations

RULE = "ragged-last-batch"


def test_loops(lines):
    """A loader iterated by a training loop."""
    code = """
        import torch
        from torch import nn
        model = nn.Linear(4, 2)
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.train()
        loader = torch.utils.data.DataLoader(data, batch_size=8)
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
    """
    assert lines(RULE, code) == [7]


def test_through_functions(lines):
    """A loader handed to the function that trains."""
    code = """
        import torch
        train_loader = torch.utils.data.DataLoader(data, batch_size=8)
        def train(model, loader):
            model.train()
            for x, y in loader:
                optimizer.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()
        train(net, train_loader)
    """
    assert lines(RULE, code) == [2]


def test_dropped_or_evaluated(lines):
    """drop_last=True, batch samplers, and loaders that only evaluate."""
    code = """
        import torch
        from torch import nn
        model = nn.Linear(4, 2)
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.train()
        loader = torch.utils.data.DataLoader(data, batch_size=8, drop_last=True)
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        test = torch.utils.data.DataLoader(data)
        for x, y in test: pass
    """
    assert lines(RULE, code) == []


def test_a_loader_that_goes_to_another_file_with_the_optimizer(lines):
    """What trains is in engine.py; what evaluates gets no optimizer."""
    code = """
        import torch
        from torch.utils.data import DataLoader
        from engine import evaluate, train_one_epoch
        train_loader = DataLoader(data, batch_size=8)
        test_loader = DataLoader(other, batch_size=8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train_one_epoch(model, optimizer, loader=train_loader)
        evaluate(model, test_loader)
    """
    assert lines(RULE, code) == [4]
