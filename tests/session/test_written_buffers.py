"""Buffers that forward writes in evaluation: metrics kept in a model, caches, statistics of a norm left in training."""

from __future__ import annotations

import pytest
import torch
from ignite.engine import create_supervised_evaluator, create_supervised_trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import OptionsError, create_ipu_averages_evaluator, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.errors import RowsError

DATA = TensorDataset(torch.randn(30, 3, generator=torch.Generator().manual_seed(1)), torch.arange(30) % 2)
LOADER = DataLoader(DATA, batch_size=4)
TRAINING = [DATA[4 * number : 4 * number + 4] for number in range(6)]


class Seen(nn.Module):
    """Adds up its predictions, shifts by its last mean, and has a normalisation that never leaves training mode."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)
        self.register_buffer("total", torch.zeros(2))
        self.register_buffer("last", torch.zeros(()))

    def train(self, mode=True):
        super().train(mode)
        self.norm.train()
        return self

    def forward(self, x):
        scores = self.layer(x) + self.last
        self.total += scores.detach().abs().sum(0)
        self.last.copy_(scores.mean().detach())
        return self.norm(scores)


def made():
    torch.manual_seed(0)
    model = Seen()
    return model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()


def buffers_after(model, trainer, evaluator):
    """Return the buffers after each of two evaluations, each after an epoch of training."""
    found = []
    for epoch in (1, 2):
        trainer.run(TRAINING, max_epochs=epoch)
        evaluator.run(LOADER)
        found.append({name: value.clone() for name, value in model.state_dict().items()})
    return found


@pytest.mark.parametrize("iterations", [1, 3])
def test_evaluators_write_the_buffers_that_ignite_s_write(iterations):
    """Batch by batch, also where the last device call is incomplete: filling would count in the sums."""
    native = made()
    expected = buffers_after(native[0], create_supervised_trainer(*native), create_supervised_evaluator(native[0]))
    model, *others = made()
    evaluator = create_ipu_evaluator(model, device_iterations=iterations)
    found = buffers_after(model, create_ipu_trainer(model, *others), evaluator)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_model_without_a_trainer_has_them_after_each_call():
    """An attribute of a module that was never trained is not watched, so the values are there at once."""
    model = Seen()
    totals = []
    evaluator = create_ipu_evaluator(model, output_transform=lambda x, y, y_pred: totals.append(model.total.clone()))
    evaluator.run(TRAINING)
    assert len(totals) == len(TRAINING)
    assert all(torch.all(after > before) for before, after in zip(totals, totals[1:]))


def test_replicas_with_buffers_of_their_own_are_refused():
    model = Seen()
    with pytest.raises(OptionsError, match="replication_factor=1"):
        create_ipu_evaluator(model, replication_factor=2).run(DataLoader(DATA, batch_size=2))


def test_averages_refuse_what_their_sums_would_change():
    """The mode Sum adds up the values that several micro-batches write; and padding would count."""
    averages = {"mean": lambda y_pred, y: y_pred[:, 0]}
    with pytest.raises(OptionsError, match="device_iterations=1"):
        create_ipu_averages_evaluator(Seen(), averages, device_iterations=2).run(TRAINING)
    evaluator = create_ipu_averages_evaluator(Seen(), averages)
    evaluator.run(TRAINING)
    with pytest.raises(RowsError, match="filling would count"):
        evaluator.run([DATA[:2]])
