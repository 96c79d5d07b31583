"""Engines over process functions that train."""

from __future__ import annotations

import pytest

REWRITE = "engine-steps"

CODE = """\
import torch
from ignite.engine import Engine

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train_step(engine, batch):
    model.train()
    optimizer.zero_grad()
    first, second = model(batch[0]), model(batch[1])
    loss = (first - second).pow(2).mean()
    loss += 0.1 * first.abs().mean()
    loss.backward()
    optimizer.step()
    return {"loss": loss.item()}


trainer = Engine(train_step)
trainer.run(loader)
"""
AFTER = CODE.replace("Engine(train_step)", "Engine(ipu_step(train_step))").replace(
    "import Engine\n", "import Engine\nfrom ignite_ipu import ipu_step\n"
)


def test_several_calls_of_the_model(rewritten):
    assert rewritten(REWRITE, CODE) == AFTER


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    loss.backward()", "    loss.backward()\n    loss.sum().backward()"),
        ("    loss.backward()", "    (loss / 2).backward()"),
        ("    loss.backward()", "    for part in (loss, loss * 2):\n        part.backward()"),
        ("    loss.backward()", "    with torch.no_grad():\n        teacher(batch[0])\n    loss.backward()"),
    ],
)
def test_other_shapes(rewritten, old, new):
    """Those that may need updates on the host are allowed to change to these."""
    after = AFTER.replace(old, new)
    if new.count("backward") > 1 or "for part" in new:
        after = after.replace("ipu_step(train_step)", 'ipu_step(train_step, config={"update": "auto"})')
    assert rewritten(REWRITE, CODE.replace(old, new)) == after


def test_methods(rewritten):
    before = """\
import torch
from ignite.engine import Engine


class Run:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.trainer = Engine(self.update)

    def update(self, engine, batch):
        self.optimizer.zero_grad()
        loss = self.model(batch[0]).sum() + self.model(batch[1]).sum()
        loss.backward()
        self.optimizer.step()
"""
    after = before.replace("Engine(self.update)", "Engine(ipu_step(self.update))").replace(
        "import Engine\n", "import Engine\nfrom ignite_ipu import ipu_step\n"
    )
    assert rewritten(REWRITE, before) == after


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Engine(train_step)", "Engine(make(train_step))"),
        ("Engine(train_step)", "Engine(steps.update)"),
        ("    loss.backward()\n", ""),
    ],
)
def test_what_is_left_alone(rewritten, old, new):
    """Functions that are not in sight, and those that do not train."""
    code = CODE.replace(old, new)
    assert code != CODE
    assert rewritten(REWRITE, code) == code


PARTIAL = """\
import functools
import torch
from ignite.engine import Engine

net = torch.nn.Linear(4, 1)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)


def step(engine, batch, model, optimizer, criterion):
    model.train()
    optimizer.zero_grad()
    output = model(batch[0])
    loss = criterion(output, batch[1])
    loss.backward()
    optimizer.step()


trainer = Engine(functools.partial(step, model=net, optimizer=sgd, criterion=torch.nn.MSELoss()))
"""


def test_a_partial_gives_the_model_and_the_optimizer(rewritten):
    after = PARTIAL.replace("Engine(functools", "Engine(ipu_step(functools")
    after = after.replace("MSELoss()))", 'MSELoss()), config={"update": "auto"}))')
    after = after.replace("Engine\n", "Engine\nfrom ignite_ipu import ipu_step\n", 1)
    assert rewritten(REWRITE, PARTIAL) == after
    assert rewritten(REWRITE, after) == after


TWO_MODELS = """\
import torch
from ignite.engine import Engine

encoder = torch.nn.Linear(4, 2)
decoder = torch.nn.Linear(2, 4)
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
encoder.train()


def step(engine, batch):
    optimizer.zero_grad()
    loss = (decoder(encoder(batch)) - batch).pow(2).mean()
    loss.backward()
    optimizer.step()


trainer = Engine(step)
"""


def test_models_that_one_optimizer_updates(rewritten):
    assert "Engine(ipu_step(step))" in rewritten(REWRITE, TWO_MODELS)
