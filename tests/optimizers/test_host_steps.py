"""A program that was moved to IPUs hears of optimizers that step on the host."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from ignite_ipu import create_ipu_trainer, host_device, ipu_prepare

MADE = {
    "captured": lambda model, optimizer: ipu_prepare(optimizer, model),
    "on the host": lambda model, optimizer: ipu_prepare(optimizer, model, config={"update": "host"}),
}


def _train(model, optimizer):
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()


def test_an_optimizer_that_nothing_has_is_named_once_with_its_line(caplog):
    model = nn.Linear(2, 1).to(host_device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        _train(model, optimizer)
    (message,) = caplog.messages
    assert message.startswith("SGD.step() at ") and f"{__file__}:" in message
    assert "trains on the host" in message and "import ignite_ipu.auto" in message


@pytest.mark.parametrize("prepare", MADE.values(), ids=MADE)
def test_optimizers_of_captured_loops_are_not(caplog, prepare):
    model = nn.Linear(2, 1).to(host_device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prepare(model, optimizer)
    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        _train(model, optimizer)
    assert "trains on the host" not in caplog.text


@pytest.mark.parametrize("update", ["device", "host"])
def test_optimizers_of_engines_are_not(caplog, update):
    model = nn.Linear(2, 1).to(host_device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = create_ipu_trainer(model, optimizer, nn.functional.mse_loss, config={"update": update})
    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        trainer.run([(torch.ones(4, 2), torch.ones(4, 1))] * 2)
    assert "trains on the host" not in caplog.text
