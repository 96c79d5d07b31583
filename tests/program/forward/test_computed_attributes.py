"""Attributes that hooks compute in forward, as of pruning and `weight_norm`, are those of the last forward."""

from __future__ import annotations

import warnings

import pytest
import torch
from ignite.engine import create_supervised_evaluator, create_supervised_trainer
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import create_ipu_evaluator, create_ipu_trainer

X = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
DATA = TensorDataset(X, torch.arange(24) % 3)


class Quantised(nn.Linear):
    """Keeps the weight that it computes with."""

    def forward(self, x):
        self.used = self.weight.tanh()
        return nn.functional.linear(x, self.used, self.bias)


def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), Quantised(3, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(model[0])
    prune.l1_unstructured(model[2], "weight", 0.3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()


def attributes(model):
    return [getattr(model[place], name).detach().clone() for place, name in ((0, "weight"), (2, "weight"), (3, "used"))]


def seen(model, trainer, evaluator, rows=4):
    """Return the attributes after training, after an evaluation, and after more training."""
    loader, found = DataLoader(DATA, batch_size=rows), []
    for epoch in (1, 2):
        trainer.run(loader, max_epochs=epoch)
        found.append(attributes(model))
        evaluator.run(loader)
        found.append(attributes(model))
    return found


@pytest.mark.parametrize("replicas", [1, 2])
def test_engines_show_the_attributes_of_the_last_forward(replicas, caplog):
    """In training those are computed from the weights before the last update, in evaluation from the newest."""
    native = made()
    trainer = create_supervised_trainer(*native)
    expected = seen(native[0], trainer, create_supervised_evaluator(native[0]))
    model, *others = made()
    trainer = create_ipu_trainer(model, *others, replication_factor=replicas)
    found = seen(model, trainer, create_ipu_evaluator(model, replication_factor=1), 4 // replicas)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not any(words in caplog.text for words in ("are not the newest", "have changed", "changed Python values"))
    shown = attributes(model)
    trainer.ipu.close()
    torch.testing.assert_close(attributes(model), shown)
    assert type(model[0].weight) is torch.Tensor
