"""Optimizers that PopTorch lacks are reported."""

from __future__ import annotations

RULE = "unsupported-optimizer"


def test_classes(lines):
    """Torch's others, and the user's own."""
    code = """
        import torch
        from torch.optim import LBFGS
        torch.optim.Adagrad(p)
        LBFGS(p)
        class Mine(torch.optim.Optimizer):
            def step(self): pass
    """
    assert lines(RULE, code) == [3, 4, 5]


def test_supported(lines):
    """SGD, Adam, AdamW, RMSprop, and schedules."""
    code = """
        import torch, poptorch
        torch.optim.SGD(p, lr=1)
        torch.optim.Adam(p)
        torch.optim.AdamW(p)
        torch.optim.RMSprop(p)
        poptorch.optim.LAMB(p)
        torch.optim.lr_scheduler.StepLR(o, 1)
    """
    assert lines(RULE, code) == []
