"""Counters of batches are no alarm: PopTorch's warnings about them are held back, others are not."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.errors import UnsupportedArgumentError
from tests.supervised import task


def model(momentum=0.1):
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=momentum), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
    return nn.Sequential(*layers)


def trained(model):
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    loader = DataLoader(task(), batch_size=16)
    trainer.run(loader)
    create_ipu_evaluator(model).run(loader)
    trainer.ipu.close()
    return trainer


def test_two_programs_log_one_line_about_all_counters(caplog):
    """And the counters are PyTorch's."""
    caplog.set_level(logging.INFO)
    norms = model()
    trained(norms)
    lines = [record for record in caplog.records if "num_batches_tracked" in record.getMessage()]
    assert [(record.name, record.levelno) for record in lines] == [("ignite_ipu", logging.INFO)]
    assert "counted on the host, in 2 layers" in lines[0].getMessage()
    assert norms[1].num_batches_tracked == norms[3].num_batches_tracked == 4


def test_a_counter_that_is_computed_with_is_still_warned_of(caplog):
    """Without a momentum the statistics are averages over all batches, so that the constant matters."""
    with pytest.raises(UnsupportedArgumentError, match="momentum=None"):
        trained(model(momentum=None))
    warned = {record.getMessage().split()[0] for record in caplog.records if "downgraded" in record.getMessage()}
    assert warned == {"model.1.num_batches_tracked"}


def test_other_integers_are_warned_of_once(caplog):
    """Not again for each program of a model."""
    norms = model()
    norms.register_buffer("table", torch.arange(3))
    trained(norms)
    warned = [record.getMessage().split()[0] for record in caplog.records if "downgraded" in record.getMessage()]
    assert warned == ["model.table"]
