"""A second optimizer in one training step is reported."""

from __future__ import annotations

RULE = "several-optimizers"


def test_one_loop(lines):
    """Found by construction or by name."""
    code = """
        import torch
        a = torch.optim.SGD(p, lr=1)
        for x in data:
            a.step()
            self.optimizer_d.step()
    """
    assert lines(RULE, code) == [5]


def test_one_function(lines):
    """Process functions too."""
    code = """
        def step(engine, batch):
            opt_d.step()
            opt_g.step()
    """
    assert lines(RULE, code) == [3]


def test_separate_loops_and_schedules(lines):
    """Two trainings one after the other, and a schedule beside an optimizer."""
    code = """
        import torch
        a = torch.optim.SGD(p, lr=1)
        b = torch.optim.SGD(p, lr=1)
        sched = torch.optim.lr_scheduler.StepLR(a, 1)
        for x in data:
            a.step()
            sched.step()
        for x in data:
            b.step()
    """
    assert lines(RULE, code) == []
