"""Updates by gradients that do not begin and end in them are reported, if they happen whatever open tests give.

`tests/doors/loops.py` has loops, each with the outcome of a run.
"""

from __future__ import annotations

import textwrap

import pytest

RULE = "gradients-across-updates"
LOOP = """
import torch
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
STEPS = 2
def train(loader, args, ema):
    for epoch in range(args.epochs):
        for step, (x, y) in enumerate(loader):
{}
"""


def loop(body):
    return LOOP.format(textwrap.indent(textwrap.dedent(body).strip(), " " * 12))


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        ("optimizer.zero_grad()\nloss(x, y).backward()\nif step % STEPS == 1:\n    optimizer.step()", [7]),
        ("optimizer.zero_grad()\nloss(x, y).backward()\nmodel.load_state_dict(best)\noptimizer.step()", [9]),
        ("loss(x, y).backward()\noptimizer.step()", [8]),
        ("loss(x, y).backward()\nif args.clear:\n    optimizer.step()\nelse:\n    optimizer.step()", [9]),
    ],
)
def test_events_that_happen_for_sure(body, reported, lines):
    assert lines(RULE, loop(body)) == reported


@pytest.mark.parametrize(
    "body",
    [
        # Nothing shows how many losses an update has, and how many batches remain at the end of an epoch.
        "loss(x, y).backward()\nif (step + 1) % args.steps == 0:\n    optimizer.step()\n    optimizer.zero_grad()",
        "loss(x, y).backward()\nif (step + 1) % 3 == 0:\n    optimizer.step()\n    optimizer.zero_grad()",
        # A test of values, which may never hold.
        "optimizer.zero_grad()\nloss(x, y).backward()\nif not x.isfinite().all():\n    continue\noptimizer.step()",
        # Weights of another model.
        "optimizer.zero_grad()\nloss(x, y).backward()\nfor p in ema.parameters():\n    pass\noptimizer.step()",
        # A loss of the discriminator's gives the generator gradients, too, which no update of its uses.
        "d_optimizer.zero_grad()\nd(x).backward()\nd_optimizer.step()\n"
        "optimizer.zero_grad()\nloss(x, y).backward()\noptimizer.step()",
    ],
)
def test_events_that_may_not_happen(body, lines):
    assert lines(RULE, loop(body)) == []


def test_a_step_of_another_function_of_the_file(lines):
    code = """
        import torch
        class Trainer:
            def __init__(self, model):
                self.model, self.optimizer = model, torch.optim.SGD(model.parameters(), lr=0.1)
            def update(self, loss):
                loss.backward()
                self.model.head.weight.data.clamp_(-1, 1)
                self.optimizer.step()
            def fit(self, loader):
                for x, y in loader:
                    self.optimizer.zero_grad()
                    self.update(self.model(x))
    """
    assert lines(RULE, code) == [7]


@pytest.mark.parametrize(
    ("models", "reported"), [("[average]", []), ("[model]", [11]), ("[average, model]", [11]), ("others", [11])]
)
@pytest.mark.parametrize(
    "written",
    [
        "[m.load_state_dict(s) for m, s in zip(held, states)]",
        "for m, s in zip(held, states): m.load_state_dict(s)",
    ],
)
def test_models_of_a_list(written, models, reported, lines):
    """A variable of a loop stands for the models of its list, which may be others than the trained one."""
    code = f"""
        import copy, torch
        model = torch.nn.Linear(4, 2)
        average = copy.deepcopy(model)
        held = {models}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for m in held: m.train()
        for x in data:
            optimizer.zero_grad()
            loss = model(x).mean()
            loss.backward()
            {written}
            optimizer.step()
    """
    assert lines(RULE, code) == reported
