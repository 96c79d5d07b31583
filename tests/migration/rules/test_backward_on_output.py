"""PopTorch code: backward() and step() beside an executor are reported."""

from __future__ import annotations

RULE = "backward-on-output"


def test_leftovers(lines):
    """Copied from the native loop."""
    code = """
        import poptorch
        import torch
        model = torch.nn.Linear(4, 2)
        options = poptorch.Options()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        t = poptorch.trainingModel(model, options, optimizer)
        for x, y in d:
            optimizer.zero_grad()
            out, loss = t(x, y)
            loss.backward()
            optimizer.step()
    """
    assert lines(RULE, code) == [8, 10, 11]


def test_executor_only(lines):
    """The call does it all."""
    code = """
        import poptorch
        import torch
        model = torch.nn.Linear(4, 2)
        options = poptorch.Options()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        t = poptorch.trainingModel(model, options, optimizer)
        for x, y in d:
            out, loss = t(x, y)
    """
    assert lines(RULE, code) == []
