"""Moving averages of weights count the updates of the engine that they follow."""

from __future__ import annotations

import pytest
import torch
from ignite.engine import create_supervised_trainer
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
