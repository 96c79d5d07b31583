"""Scripts run over the IPUs that their settings say."""

from __future__ import annotations

import pytest

from ignite_ipu import IPUConfig
from ignite_ipu.errors import RunError

SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(48, 6).to(device), torch.randint(3, (48,)).to(device)
for number, (rows, labels) in enumerate(zip(x.split(8), y.split(8)), 1):
    (F.cross_entropy(model(rows), labels) / 3).backward()
    if number % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()
model.eval()
with torch.no_grad():
    print(f"{F.cross_entropy(model(x), y):.5f}")
"""


def test_a_script(run, natively):
    expected = natively(SCRIPT)
    for settings in ({}, {"execution": "sharded"}):
        assert run(SCRIPT, config=IPUConfig(pipeline=["0", "2"], **settings)).output == expected
    with pytest.raises(RunError, match=r"script.py:14: A pipeline of 2 stages .* = 3 micro-batches .* 2 too few"):
        run(SCRIPT.replace("% 3", "% 1"), config=IPUConfig(pipeline=["0", "2"]))


TRAINER = """
import torch
from ignite.engine import create_supervised_trainer
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss(), device=device)
x, y = torch.randn(48, 6), torch.randint(3, (48,))
trainer.run(list(zip(x.split(8), y.split(8))))
print(trainer.state.iteration, f"{trainer.state.output:.5f}")
"""


def test_a_trainer_of_ignites_with_batches_that_are_cut(run, natively):
    """Each of its iterations is an update of a pipeline."""
    expected = natively(TRAINER)
    assert run(TRAINER, config=IPUConfig(pipeline=["0", "2"], split_batch=4)).output == expected
