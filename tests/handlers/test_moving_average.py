"""Moving averages of weights count the updates of the engine that they follow."""

from __future__ import annotations

import pytest
import torch
from ignite.engine import create_supervised_trainer
from ignite.handlers import EMAHandler
from torch import nn

from ignite_ipu import create_ipu_trainer
from ignite_ipu.handlers import EMA
from tests.supervised import pair, task


@pytest.mark.parametrize("beside_an_ipu_trainer", [False, True])
def test_a_native_trainer_is_averaged_per_iteration(beside_an_ipu_trainer):
    """Whether or not the process has a trainer whose state counts weight updates; by arithmetic on its weights."""
    if beside_an_ipu_trainer:
        create_ipu_trainer(*pair(), nn.CrossEntropyLoss()).ipu.close()
    model, optimizer = pair()
    trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())
    ema = EMA(model, momentum=0.25)
    ema.attach(trainer)
    expected = model[0].weight.detach().clone()
    batch = [tensor[:8] for tensor in task().tensors]
    for _ in range(3):
        trainer.run([batch], max_epochs=1)
        expected = 0.75 * expected + 0.25 * model[0].weight.detach()
    assert ema.state_dict()["updates_seen"] == 1
    torch.testing.assert_close(ema.model[0].weight.detach(), expected)


class Tied(nn.Module):
    """Two layers with one weight, and a mean of the inputs that is not saved."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight
        self.register_buffer("mean", torch.zeros(6), persistent=False)

    def forward(self, x):
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return self.head(torch.tanh(self.second(self.first(x - self.mean))))


def test_each_tensor_is_averaged_or_copied_once():
    """As Ignite's own handler does beside it."""
    model = Tied()
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    ema, expected = EMA(model, momentum=0.25), EMAHandler(model, momentum=0.25)
    ema.attach(trainer)
    expected.attach(trainer)
    trainer.run([[tensor[:8] for tensor in task().tensors]] * 3, max_epochs=2)
    for tensors in (nn.Module.named_parameters, nn.Module.named_buffers):
        torch.testing.assert_close(dict(tensors(ema.model)), dict(tensors(expected.ema_model)))
    assert ema.model.second.weight is ema.model.first.weight
