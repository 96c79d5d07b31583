"""Obstacles for a compilation without a rule of their own."""

from __future__ import annotations

CODE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        {line}


def make():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, nn.MSELoss(), [(torch.ones(8, 4), torch.zeros(8, 2))]
"""


def test_outputs_without_tensors(traced):
    assert (10, "failed-trace") in traced(CODE.format(line="self.layer(x); return 'nothing'"))


def test_what_fails_natively_already(traced):
    assert traced(CODE.format(line="return self.layer(x.t())")) == [(11, "failed-trace")]


def test_a_loss_that_is_no_scalar(traced):
    code = CODE.replace("nn.MSELoss()", "lambda output, y: output - y")
    assert "failed-trace" in {rule for _, rule in traced(code.format(line="return self.layer(x)"))}


def test_a_model_that_compiles(traced):
    assert traced(CODE.format(line="return self.layer(x)")) == []
