"""Weights that engines train are known by identity, whatever their number."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ignite_ipu import create_ipu_trainer
from ignite_ipu.running.substitutes.gradients import EngineWeights


class WeightedLoss(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, y_pred, y):
        return self.scale * nn.functional.mse_loss(y_pred, y)


def engine_weights(model, loss=None):
    loss = loss or nn.MSELoss()
    parameters = [*model.parameters(), *loss.parameters()]
    trainer = create_ipu_trainer(model, torch.optim.SGD(parameters, lr=0.1), loss)
    found = EngineWeights()
    found.add(trainer.ipu)
    return trainer, found


def test_what_a_trainer_trains():
    """Its model's parameters and its loss's, neither frozen ones nor equal tensors, and nothing once it is closed."""
    model, loss = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), WeightedLoss()
    model[0].requires_grad_(False)
    trainer, found = engine_weights(model, loss)
    assert [found.trains(tensor) for tensor in model.parameters()] == [False, False, True, True]
    assert found.trains(loss.scale)
    assert not found.trains(model[1].weight.detach().clone().requires_grad_())
    trainer.ipu.close()
    assert not any(found.trains(tensor) for tensor in (*model.parameters(), loss.scale))


def test_weights_that_a_later_trainer_brings_are_known():
    """A session may get another trainer, with a loss that has weights."""
    model, loss = nn.Linear(2, 2), WeightedLoss()
    trainer, found = engine_weights(model)
    assert found.trains(model.weight) and not found.trains(loss.scale)
    trainer.ipu.stop_training()
    assert not found.trains(model.weight)
    create_ipu_trainer(model, torch.optim.SGD([*model.parameters(), loss.scale], lr=0.1), loss)
    assert found.trains(model.weight) and found.trains(loss.scale)


@pytest.mark.parametrize("layers", [10, 40])
def test_asking_for_every_parameter_goes_through_the_weights_once(monkeypatch, layers):
    """The time of a loop over the parameters is proportional to their number, not to its square."""
    passes = 0

    class Counted(list):
        def __iter__(self):
            nonlocal passes
            passes += 1
            return super().__iter__()

    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(layers)))
    trainer, found = engine_weights(model)
    held = trainer.ipu.weights.held
    monkeypatch.setattr(held, "tensors", Counted(held.tensors))
    assert all(found.trains(parameter) for parameter in model.parameters())
    assert passes == 1
