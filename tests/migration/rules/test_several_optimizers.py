"""A second optimizer of the same parameters in one training step is reported."""

from __future__ import annotations

RULE = "several-optimizers"


def test_one_loop(lines):
    """Found by the parameters that they are made from."""
    code = """
        import torch
        a = torch.optim.SGD(model.parameters(), lr=1)
        b = torch.optim.Adam(model.parameters())
        for x in data:
            a.step()
            b.step()
    """
    assert lines(RULE, code) == [6]


def test_parameters_of_their_own(lines):
    """Optimizers of other models step in turns, by programs of their own."""
    code = """
        import torch
        a = torch.optim.SGD(G.parameters(), lr=1)
        b = torch.optim.SGD(D.parameters(), lr=1)
        def step(engine, batch):
            a.step()
            b.step()
            self.optimizer_c.step()
    """
    assert lines(RULE, code) == []


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
