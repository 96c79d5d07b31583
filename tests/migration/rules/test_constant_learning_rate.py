"""PopTorch code: scheduled optimizers without an explicit lr are reported."""

from __future__ import annotations

RULE = "constant-learning-rate"


def test_no_lr(lines):
    """It is compiled in."""
    code = """
        import poptorch
        import torch
        model = torch.nn.Linear(4, 2)
        options = poptorch.Options()
        optimizer = poptorch.optim.Adam(model.parameters())
        s = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    """
    assert lines(RULE, code) == [5]


def test_explicit_or_marked(lines):
    """An explicit lr is variable."""
    code = """
        import poptorch
        import torch
        model = torch.nn.Linear(4, 2)
        options = poptorch.Options()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        s = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    """
    assert lines(RULE, code) == []
