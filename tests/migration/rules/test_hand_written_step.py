"""Every backward() in host code is reported, once."""

from __future__ import annotations

RULE = "hand-written-step"


def test_loops_and_process_functions(lines):
    """In a loop, in a function, in a method."""
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

        def step(engine, batch):
            optimizer.zero_grad()
            loss = criterion(model(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
    """
    assert lines(RULE, code) == [10, 16]


def test_other_backwards(lines):
    """accelerate's, and those of autograd functions, are other things."""
    code = """
        accelerator.backward(loss)
        import torch
        class F(torch.autograd.Function):
            @staticmethod
            def backward(ctx, g): return g
    """
    assert lines(RULE, code) == []


ENGINE = """
    import torch
    from ignite.engine import Engine
    from ignite_ipu import ipu_step
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def train_step(engine, batch):
        optimizer.zero_grad()
        loss = (model(batch[0]) - model(batch[1])).pow(2).mean()
        loss.backward()
        optimizer.step()
    trainer = Engine({step})
"""


def test_process_functions_that_are_recorded(lines):
    """`ipu_step` runs them on the device; without it they run on the host, and migrate adds it."""
    assert lines("hand-written-step", ENGINE.format(step="ipu_step(train_step)")) == []
    assert lines("hand-written-step", ENGINE.format(step="train_step")) == [9]


def test_optimizers_of_two_steps_have_their_own_way_out(findings):
    """That of preparing the optimizer, whose methods do not update, is none."""
    code = """
        import torch
        from sam import SAM
        model = torch.nn.Linear(4, 1)
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
        for x, y in loader:
            (model(x) - y).pow(2).mean().backward()
            optimizer.first_step(zero_grad=True)
            (model(x) - y).pow(2).mean().backward()
            optimizer.second_step(zero_grad=True)
    """
    found = findings(RULE, code)
    assert [each.line for each in found] == [6, 8]
    assert all("an update by first_step(), second_step(), not by step()" in each.message for each in found)
    assert all("IPUConfig(update='host')" in each.remedy for each in found)
