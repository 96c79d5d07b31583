"""A loss that reads what a compiled function cannot read as it does is left where it is, with the reason."""

from __future__ import annotations

import textwrap

import pytest

from ignite_ipu.migration.migrator import migrate_source
from ignite_ipu.migration.source.file import Source

PROGRAM = """
import random
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from ignite.engine import Engine

class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weights", torch.ones(3))

    def forward(self, output, y):
        return (F.cross_entropy(output, y, reduction="none") * self.weights[y]).mean()

model = nn.Sequential(nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weights = torch.tensor([1.0, 2.0, 0.5]).to("cpu")
generator = np.random.default_rng(0)
weighted = Weighted().to("cpu")
for batch in loader:
    x, y = batch.x, batch.y
    noise = random.random()
    optimizer.zero_grad()
    output = model(x)
    loss = LOSS
    loss.backward()
    optimizer.step()
"""


def steps(loss):
    from ignite_ipu.migration.program import Program

    (step,) = Program(Source("code.py", PROGRAM.replace("LOSS", loss))).training.steps
    return step


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        ("F.cross_entropy(output, y) + random.random()", "draws a number from random.random; draw it in front"),
        ("F.cross_entropy(output, y) + np.random.rand()", "draws a number from numpy.random.rand"),
        ("F.cross_entropy(output, y) + generator.random()", "draws a number from generator"),
        ("F.cross_entropy(output, y) / batch.size_of_all", "reads 'batch.size_of_all' of an object"),
        (
            "(F.cross_entropy(output, y, reduction='none') * weights[y]).mean()",
            "reads the tensor 'weights' of the host",
        ),
        ("weighted(output, y) + output.mean()", "calls 'weighted', whose tensors stay on the host"),
    ],
)
def test_what_stays_on_the_host(loss, reason):
    step = steps(loss)
    assert step.plan is None
    assert reason in step.reason


@pytest.mark.parametrize(
    "loss",
    [
        "F.cross_entropy(output, y) + noise",
        "F.cross_entropy(output, batch.y)",
        "weighted(output, y)",
        "F.cross_entropy(output, y.long()) * y.shape[0]",
        "(F.cross_entropy(output, y, reduction='none') * weights.to(output.device)[y]).mean()",
    ],
)
def test_what_a_compiled_loss_reads_as_well(loss):
    assert steps(loss).reason == ""


def test_an_engine_s_number_goes_to_ipu_step():
    """A number of the engine's state changes from epoch to epoch, and a target that is an engine would keep it."""
    code = """
        import torch
        from torch import nn
        from ignite.engine import Engine

        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(engine, batch):
            x, y = batch
            optimizer.zero_grad()
            output = model(x)
            loss = nn.functional.cross_entropy(output, y) / engine.state.epoch
            loss.backward()
            optimizer.step()

        Engine(step).run(data)
    """
    migration = migrate_source(Source("code.py", textwrap.dedent(code)))
    assert not migration.blocked
    assert "Engine(ipu_step(step)).run(data)" in migration.text
    assert "/ engine.state.epoch" in migration.text
