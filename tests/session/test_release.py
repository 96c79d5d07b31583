"""A device that answers nothing more is given back: the model is an ordinary one with the newest copy there is."""

from __future__ import annotations

import copy
import gc
import os
import signal

import pytest
import torch
from ignite.engine import Events
from torch import nn
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.errors import RecoveryError, SessionError
from ignite_ipu.handlers import Recovery
from tests.supervised import network, task, train_natively
from tests.taken_ipus import leave_out_others, taken

CROSS_ENTROPY = nn.CrossEntropyLoss()
DEAD = poptorch.Fault(None, "no answer", lasting=True)


@pytest.fixture(autouse=True)
def _machine():
    leave_out_others()


def loader():
    return DataLoader(task(), batch_size=8)


def trainer_for(dropout=False):
    model = nn.Sequential(nn.Dropout(0.3), network()) if dropout else network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return create_ipu_trainer(model, optimizer, CROSS_ENTROPY), model, optimizer


def assert_ordinary(model, optimizer):
    """Both are PyTorch's own, no IPU is taken, and another trainer can be made of them."""
    gc.collect()
    assert not taken()
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
    assert type(optimizer) is torch.optim.Adam
    train_natively(model, optimizer, loader())
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY)
    trainer.run(loader())
    trainer.ipu.close()


def test_a_run_that_loses_its_device_leaves_the_newest_copy():
    """That of the checkpoint after five steps; later updates are lost with the device."""
    trainer, model, optimizer = trainer_for()
    seen = []

    @trainer.on(Events.ITERATION_COMPLETED(once=5))
    def look():
        seen.extend(copy.deepcopy((model.state_dict(), optimizer.state_dict())))

    with poptorch.inject_faults({7: DEAD}), pytest.raises(poptorch.UnrecoverableError):
        trainer.run(loader())
    weights, state = seen
    torch.testing.assert_close(dict(model.state_dict()), dict(weights), rtol=0, atol=0)
    trainer.ipu.close()
    torch.testing.assert_close(optimizer.state_dict()["state"], state["state"], rtol=0, atol=0)
    assert_ordinary(model, optimizer)


@pytest.mark.parametrize("end", ["release", "close", "stop_training"])
def test_an_end_gives_a_dead_device_back(end):
    """And the message names the missing value."""
    trainer, model, optimizer = trainer_for()
    evaluator = create_ipu_evaluator(model)
    trainer.run(loader())
    evaluator.run(loader())
    session = trainer.ipu
    x, y = task().tensors
    session.train(x[:8], y[:8])
    with poptorch.inject_faults({}, copies={0: DEAD}):
        with pytest.raises((SessionError, poptorch.UnrecoverableError), match="no answer"):
            getattr(session, end)()
        if end == "stop_training":
            session.release_after_failure()
    session.close()
    assert_ordinary(model, optimizer)


class Stubborn:
    """An executor that gives nothing back, whatever is asked of it."""

    def __init__(self, executor):
        self.asked = []
        for name in ("detachFromDevice", "destroy"):
            setattr(executor, name, lambda name=name: self.refuse(name))

    def refuse(self, name):
        self.asked.append(name)
        raise poptorch.UnrecoverableError(f"{name} does not work")


def test_an_executor_that_gives_nothing_back_is_dropped():
    """Its IPUs are free when nothing refers to it any more; model and optimizer are as after any other end."""
    trainer, model, optimizer = trainer_for()
    trainer.run(loader())
    stubborn = Stubborn(trainer.ipu.training.executor)
    with pytest.raises(SessionError, match="destroy does not work"):
        trainer.ipu.release()
    assert set(stubborn.asked) == {"detachFromDevice", "destroy"}
    trainer.run(loader(), max_epochs=2)
    trainer.ipu.close()
    assert_ordinary(model, optimizer)


def test_a_data_worker_that_dies_meanwhile_costs_nothing(monkeypatch):
    """`torch.utils.data` raises from the signal of its death, wherever the main thread is."""

    def raises(signal_number, frame):
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.")

    def copied(executor, copy=poptorch.PoplarExecutor.copyWeightsToHost):
        os.kill(os.getpid(), signal.SIGCHLD)
        copy(executor)

    trainer, model, optimizer = trainer_for()
    trainer.run(loader())
    native = network()
    its_optimizer = torch.optim.Adam(native.parameters(), lr=0.01)
    train_natively(native, its_optimizer, loader())
    monkeypatch.setattr(poptorch.PoplarExecutor, "copyWeightsToHost", copied)
    x, y = task().tensors
    before = signal.signal(signal.SIGCHLD, raises)
    try:
        trainer.ipu.train(x[:8], y[:8])
        trainer.ipu.release()
    finally:
        signal.signal(signal.SIGCHLD, before)
    trainer.ipu.close()
    its_optimizer.zero_grad()
    CROSS_ENTROPY(native(x[:8]), y[:8]).backward()
    its_optimizer.step()
    torch.testing.assert_close(dict(model.state_dict()), dict(native.state_dict()))
    assert_ordinary(model, optimizer)


# -- without a seed, and before the first run ----------------------------------------------------------------------


@pytest.mark.parametrize("guarded", [False, True])
def test_a_first_call_that_fails_for_good_is_survived(guarded, tmp_path):
    """PopTorch then knows no random state."""
    trainer, model, optimizer = trainer_for(dropout=True)
    before = copy.deepcopy(model.state_dict())
    if guarded:
        Recovery(tmp_path, backoff=0.0).attach(trainer)
    with poptorch.inject_faults({0: DEAD}), pytest.raises((poptorch.UnrecoverableError, RecoveryError)):
        trainer.run(loader())
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    trainer.ipu.close()
    assert_ordinary(model, optimizer)


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("call", [0, 1, 3])
def test_recovery_needs_no_seed(call, lasting, tmp_path):
    """The random numbers of dropout are those of a run without the fault, from the first call on."""
    weights = []
    for faults in ({}, {call: poptorch.Fault(lasting=lasting)}):
        torch.manual_seed(5)
        trainer, model, _ = trainer_for(dropout=True)
        Recovery(tmp_path, backoff=0.0).attach(trainer)
        with poptorch.inject_faults(faults):
            trainer.run(loader())
        weights.append(copy.deepcopy(dict(model.state_dict())))
        trainer.ipu.close()
    torch.testing.assert_close(*weights, rtol=0, atol=0)
