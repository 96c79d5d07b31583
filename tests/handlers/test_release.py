"""Giving the IPUs back at the end of a run."""

from __future__ import annotations

import pytest
from ignite.engine import Engine
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import create_ipu_trainer
from ignite_ipu.errors import SessionError
from ignite_ipu.handlers import DeviceRelease
from tests.supervised import assert_same_weights, pair, task, train_natively


def test_the_ipus_are_free_after_a_run_and_the_next_one_goes_on():
    """Releasing costs a compilation later, and changes no weight."""
    model, optimizer = pair(momentum=0.9)
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    DeviceRelease().attach(trainer)
    loader = DataLoader(task(), batch_size=8)
    reference, reference_optimizer = pair(momentum=0.9)
    for _ in range(2):
        trainer.run(loader)
        assert not trainer.ipu.training.ready
        train_natively(reference, reference_optimizer, loader)
    assert_same_weights(model, reference)


def test_an_engine_without_ipus_has_none_to_release():
    """It is refused when the handler is attached, and not when the run has ended."""
    with pytest.raises(SessionError, match="DeviceRelease needs an engine that this library has returned"):
        DeviceRelease().attach(Engine(lambda engine, batch: None))
