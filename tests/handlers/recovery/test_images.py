"""Files of `Recovery`: the state of a run as it was between two iterations, which has gone on since."""

from __future__ import annotations

import pytest
import torch
from ignite.engine import Events
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import create_ipu_trainer
from ignite_ipu.checkpoints import read_checkpoint
from ignite_ipu.handlers import Recovery
from tests.supervised import task

LOADER = DataLoader(task(), batch_size=8, shuffle=True)


class Remembering(nn.Linear):
    """A layer that saves the numbers that it was given, once there are some."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.remembered = []

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.remembered:
            destination[f"{prefix}remembered"] = list(self.remembered)


class Counting(Remembering):
    """A layer that saves its numbers by PyTorch's own method for that."""

    _save_to_state_dict = nn.Linear._save_to_state_dict

    def get_extra_state(self):
        return list(self.remembered)

    def set_extra_state(self, state):
        self.remembered = state


def add_hook(model):
    def hook(module, state, prefix, metadata):
        state["hooked"] = 7

    model._register_state_dict_hook(hook)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (nn.Linear, None),
        (nn.Linear, add_hook),
        (Remembering, lambda model: model[0].remembered.append(1)),
        (Counting, lambda model: model[0].remembered.append(1)),
    ],
    ids=["nothing", "a hook", "a method of the class", "extra state"],
)
def test_a_file_holds_the_state_of_its_moment(tmp_path, kind, change):
    """Entries that the state dictionary gets during the run are in it; changes after the snapshot are not."""
    model = nn.Sequential(kind(6, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    recovery, expected = Recovery(tmp_path, every=1), {}
    recovery.attach(trainer)

    @trainer.on(Events.ITERATION_COMPLETED(once=4))
    def remember():
        if change is not None:
            change(model)
        expected.update(trainer=trainer.state_dict(), names=list(model.state_dict()))
        expected["weight"] = model[0].weight.detach().clone()

    @trainer.on(Events.ITERATION_STARTED(once=5))
    def go_on():
        torch.rand(3)
        if kind is not nn.Linear:
            model[0].remembered.append(2)

    trainer.add_event_handler(Events.ITERATION_STARTED(once=5), recovery.save)
    trainer.run(LOADER, epoch_length=6)
    saved = read_checkpoint(recovery.status.saved)
    assert saved["trainer"] == expected["trainer"] and saved["trainer"]["iteration"] == 4
    assert list(saved["model"]) == expected["names"]
    assert torch.equal(saved["model"]["0.weight"], expected["weight"])
    extra = [value for name, value in saved["model"].items() if name in ("0.remembered", "0._extra_state")]
    assert extra == ([[1]] if kind is not nn.Linear else [])
