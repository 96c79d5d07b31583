"""Runs whose updates PyTorch makes on the host go on after faults as if there had been none."""

from __future__ import annotations

import pytest
import torch
from ignite.engine import Events
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu import IPUConfig, create_ipu_trainer
from ignite_ipu.checkpoints import read_checkpoint
from ignite_ipu.errors import RecoveryError
from ignite_ipu.handlers import Recovery

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
DATA = [(X[start : start + 8], torch.arange(8) % 3) for start in range(0, 32, 8)]


def make(folder, optimizer=torch.optim.NAdam, **settings):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(5, 3))
    made = optimizer(model.parameters(), lr=0.05, **settings)
    trainer = create_ipu_trainer(model, made, nn.CrossEntropyLoss(), config=IPUConfig(update="host", seed=4))
    losses = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output))
    Recovery(folder, backoff=0.0, resume="auto").attach(trainer)
    return trainer, model, made, losses


def trained(folder, calls=(), copies=(), lasting=False, **settings):
    trainer, model, optimizer, losses = make(folder, **settings)
    fault = poptorch.Fault("IPU_RESET", lasting=lasting)
    with poptorch.inject_faults(dict.fromkeys(calls, fault), dict.fromkeys(copies, fault)):
        trainer.run(DATA, max_epochs=3)
    status = trainer.state.recovery
    trainer.ipu.close()
    return (losses, dict(model.state_dict()), optimizer.state_dict()["state"]), status.recoveries


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("hits", [{"calls": (0, 3)}, {"calls": (7, 8)}, {"copies": (4,)}, {"copies": (9, 15)}], ids=str)
def test_a_fault_loses_nothing(hits, lasting, tmp_path):
    """Neither random numbers of dropout, nor statistics, nor the optimizer's state."""
    expected, none = trained(tmp_path / "one")
    found, recoveries = trained(tmp_path / "two", lasting=lasting, **hits)
    assert none == 0 and recoveries > 0
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_an_optimizer_with_a_closure_goes_on_in_the_middle_of_its_step(tmp_path):
    settings = {"optimizer": torch.optim.LBFGS, "max_iter": 3}
    expected, _ = trained(tmp_path / "one", **settings)
    found, recoveries = trained(tmp_path / "two", calls=(4, 11), **settings)
    assert recoveries == 2
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_run_that_ends_is_saved_and_resumed(tmp_path):
    """The state of the optimizer in the file is torch's own."""
    expected, _ = trained(tmp_path / "one")
    trainer, _, _, first = make(tmp_path / "two")
    with poptorch.inject_faults({6: poptorch.Fault(None)}), pytest.raises(RecoveryError):
        trainer.run(DATA, max_epochs=3)
    trainer.ipu.close()
    saved = sorted((tmp_path / "two").glob("recovery_*.pt"))[-1]
    assert "mu_product" in read_checkpoint(saved)["optimizer"]["state"][0]
    trainer, model, optimizer, losses = make(tmp_path / "two")
    trainer.run(DATA, max_epochs=3)
    state = (dict(model.state_dict()), optimizer.state_dict()["state"])
    trainer.ipu.close()
    assert [*first[: len(expected[0]) - len(losses)], *losses] == expected[0]
    torch.testing.assert_close(state, expected[1:], rtol=0, atol=0)
