"""Dropping a model's trainer gives its IPUs back, though PopTorch ties optimizer, executor and model together."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import IPUAccelerator, create_ipu_trainer, ipu_evaluate_batch, ipu_step, ipu_train_batch
from ignite_ipu.handlers import Recovery
from tests.accelerate_state import forget
from tests.supervised import pair, task, train_natively
from tests.taken_ipus import leave_out_others, taken

CROSS_ENTROPY = nn.CrossEntropyLoss()


def loader():
    return DataLoader(task(), batch_size=8)


@pytest.fixture(autouse=True)
def _machine():
    leave_out_others()
    yield
    forget()


def supervised(model, optimizer, folder):
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY)
    trainer.run(loader())
    return trainer


def recovering(model, optimizer, folder):
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY)
    recovery = Recovery(folder, backoff=0.0)
    recovery.attach(trainer)
    trainer.run(loader())
    return recovery


def accelerated(model, optimizer, folder):
    accelerator = IPUAccelerator()
    model, optimizer, data = accelerator.prepare(model, optimizer, loader())
    for x, y in data:
        optimizer.zero_grad()
        accelerator.backward(CROSS_ENTROPY(model(x), y))
        optimizer.step()
    return accelerator, model, optimizer


def captured(model, optimizer, folder):
    def step(engine, batch):
        x, y = batch
        optimizer.zero_grad()
        loss = CROSS_ENTROPY(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    stepping = ipu_step(step, model=model, optimizer=optimizer)
    for batch in loader():
        stepping(None, batch)
    return stepping


@pytest.mark.parametrize("way", [supervised, recovering, accelerated, captured])
def test_whoever_keeps_the_optimizer_keeps_no_ipus(way, tmp_path):
    """Nor the model, which may refer to its trainer."""
    model, optimizer = pair(momentum=0.9)
    trains = way(model, optimizer, tmp_path)
    model.trained_by = (trains,)
    gone = weakref.ref(model)
    assert taken()
    del model, trains
    forget()
    gc.collect()
    assert not taken() and gone() is None
    assert type(optimizer) is torch.optim.SGD


@pytest.mark.parametrize("way", [supervised, recovering])
def test_whoever_has_model_and_optimizer_goes_on_with_them(way, tmp_path):
    """Without the trainer both are ordinary ones."""
    model, optimizer = pair(momentum=0.9)
    trains = way(model, optimizer, tmp_path)
    assert taken()
    del trains
    gc.collect()
    assert not taken()
    train_natively(model, optimizer, loader())


def test_a_model_that_is_trained_batch_by_batch_is_dropped_with_its_programs():
    """They hang on the model alone; its copies and files are ordinary ones."""
    model, optimizer = pair()
    for x, y in loader():
        ipu_train_batch(model, optimizer, CROSS_ENTROPY, x, target=y)
    ipu_evaluate_batch(model, x)
    assert taken()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))
        assert not any(type(value).__module__.startswith("ignite_ipu") for value in vars(other).values())
    del model, optimizer, other
    gc.collect()
    assert not taken()
