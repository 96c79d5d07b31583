"""A step() with a closure is reported."""

from __future__ import annotations

RULE = "optimizer-closure"


def test_functions_and_lambdas(lines):
    """Named or not."""
    code = """
        import torch
        o = torch.optim.SGD(p, lr=1)
        def closure(): pass
        o.step(closure)
        o.step(lambda: 1)
    """
    assert lines(RULE, code) == [4, 5]


def test_schedules_and_environments(lines):
    """Their step() takes other things."""
    code = """
        import torch
        o = torch.optim.SGD(p, lr=1)
        s = torch.optim.lr_scheduler.StepLR(o, 1)
        s.step(3)
        env.step(action)
        o.step()
    """
    assert lines(RULE, code) == []
