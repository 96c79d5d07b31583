"""Schedulers that keep a method of their own in their state can be saved, read and resumed."""

from __future__ import annotations

import copy

import pytest
import torch
from ignite.engine import Events
from ignite.handlers import LRScheduler, ReduceLROnPlateauScheduler
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, OneCycleLR, SequentialLR
from torch.optim.swa_utils import SWALR
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import create_ipu_trainer
from ignite_ipu.checkpoints import CheckpointError, read_checkpoint, resume_from, write_checkpoint
from ignite_ipu.checkpoints.writing import without_methods
from ignite_ipu.errors import RecoveryError
from ignite_ipu.handlers import Recovery
from tests.supervised import pair, task

SCHEDULERS = {
    "OneCycleLR": lambda optimizer: OneCycleLR(optimizer, max_lr=1.0, total_steps=20),
    "linear": lambda optimizer: OneCycleLR(optimizer, max_lr=1.0, total_steps=20, anneal_strategy="linear"),
    "SWALR": lambda optimizer: SWALR(optimizer, swa_lr=0.1),
    "in SequentialLR": lambda optimizer: SequentialLR(
        optimizer, [ConstantLR(optimizer), OneCycleLR(optimizer, max_lr=1.0, total_steps=20)], [2]
    ),
}


class Owner:
    def own(self):
        pass


def scheduled(make):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(100_000))], lr=0.5, momentum=0.9)
    return optimizer, make(optimizer)


@pytest.mark.filterwarnings("ignore:The epoch parameter in")  # SequentialLR's own call, in older versions
@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_a_schedule_goes_on_from_a_file(tmp_path, make):
    """And the file holds the schedule alone, not the weights that its optimizer has."""
    first, scheduler = scheduled(make)
    rates = []
    for step in range(12):
        if step == 6:
            write_checkpoint(tmp_path / "a.pt", {"scheduler": scheduler.state_dict()})
            trained = first.state_dict()
        first.step()
        scheduler.step()
        rates.append(first.param_groups[0]["lr"])
    assert (tmp_path / "a.pt").stat().st_size < 20_000
    second, scheduler = scheduled(make)
    second.load_state_dict(trained)
    resume_from(tmp_path, {"scheduler": scheduler})
    for rate in rates[6:]:
        second.step()
        scheduler.step()
        assert second.param_groups[0]["lr"] == rate


@pytest.mark.parametrize("make", [LRScheduler, None], ids=["LRScheduler", "ReduceLROnPlateauScheduler"])
def test_ignites_schedulers_are_read(tmp_path, make):
    """The state of theirs has torch's in it."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5, momentum=0.9)
    handler = ReduceLROnPlateauScheduler(optimizer, "loss") if make is None else make(SCHEDULERS["linear"](optimizer))
    write_checkpoint(tmp_path / "a.pt", {"scheduler": handler.state_dict()})
    handler.load_state_dict(read_checkpoint(tmp_path / "a.pt")["scheduler"])


def test_a_file_of_another_saver_with_a_method_is_refused(tmp_path):
    """The error names the writer, and the way out."""
    torch.save({"layer": nn.Linear(1, 1).forward}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"getattr.*CheckpointSaver leaves these out.*Checkpoint\.load_objects"):
        read_checkpoint(tmp_path / "a.pt")


def test_a_failed_run_with_such_a_schedule_goes_on(tmp_path):
    """The part that `Recovery` keeps in memory has no copy of the optimizer either."""
    rates = []
    for resume in ("never", "auto"):
        model, optimizer = pair(momentum=0.9)
        scheduler = SCHEDULERS["OneCycleLR"](optimizer)
        trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
        recovery = Recovery(tmp_path, {"scheduler": scheduler}, every=1, retries=0, resume=resume)
        recovery.attach(trainer)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine, own: own.step(), scheduler)
        if resume == "never":
            with poptorch.inject_faults({3: poptorch.Fault()}), pytest.raises(RecoveryError):
                trainer.run(DataLoader(task(), batch_size=8))
            states = recovery._guarded()._images.newest.states
            assert not any(callable(value) for value in states["scheduler"].values())
        else:
            trainer.run(DataLoader(task(), batch_size=8))
        rates.append((trainer.state.iteration, scheduler.last_epoch))
    assert rates == [(4, 3), (8, 8)]


def test_only_what_holds_a_method_is_made_anew():
    """Functions stay, and a user's own methods."""
    state = {"a": [1, (torch.ones(1), {"b": print})], "c": {"d": copy.copy, "e": nn.functional.relu, "f": Owner().own}}
    assert without_methods(state) is state
    changed = without_methods({**state, "e": {"f": nn.Linear(1, 1).forward, "g": 1}})
    assert changed == {**state, "e": {"g": 1}}
    assert changed["a"] is state["a"]
    itself = {}
    itself["itself"] = itself
    assert without_methods(itself) is itself
