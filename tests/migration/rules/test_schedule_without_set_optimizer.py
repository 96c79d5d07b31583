"""PopTorch code: schedules whose values never reach the device are reported."""

from __future__ import annotations

RULE = "schedule-without-set-optimizer"


def test_never_sent(lines):
    """No setOptimizer anywhere after the step."""
    code = """
        import poptorch
        import torch
        model = torch.nn.Linear(4, 2)
        options = poptorch.Options()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        s = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        t = poptorch.trainingModel(model, options, optimizer)
        s.step()
    """
    assert lines(RULE, code) == [8]


def test_sent_in_the_loop(lines):
    """A setOptimizer in the same loop sends the next value."""
    code = """
        import poptorch
        import torch
        model = torch.nn.Linear(4, 2)
        options = poptorch.Options()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        s = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        t = poptorch.trainingModel(model, options, optimizer)
        for x in d:
            t.setOptimizer(optimizer)
            s.step()
    """
    assert lines(RULE, code) == []


def test_plain_pytorch(lines):
    """Without PopTorch a schedule needs no sending."""
    code = """
        import torch
        o = torch.optim.SGD(p, lr=1)
        s = torch.optim.lr_scheduler.StepLR(o, 1)
        s.step()
    """
    assert lines(RULE, code) == []
