"""Calls of this package in one steady iteration of a trainer: each earns its place, and the list does not grow unseen.

Comprehensions are left out, which are no calls in newer versions of Python, and so is the emulator.
"""

from __future__ import annotations

import sys
from typing import Counter, Tuple

import pytest
import torch
from ignite.engine import Events
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import create_ipu_trainer
from ignite_ipu.torch_names.optimizers import GLOBAL_PRE_HOOKS
from tests.steady_calls import CallCounter

MOST = (34, 17)
"""How many calls there are at most, and in how many files."""
CALLED = {
    "engines.call_loader": "_calls",
    "engines.counting": "_announce _count",
    "engines.engine": "_make_calls _show_batch",
    "engines.resume.position": "_counted",
    "engines.steps": "_prepares_nothing joined loss_item prepared run",
    "engines.trainer": "latest",
    "optimizers.changes": "changes",
    "optimizers.link": "push stepped",
    "optimizers.step_hooks": "after before",
    "program.guards.python_state": "__call__ complete same training",
    "program.layout": "leaves_of",
    "session.compiled_program": "changed_values set_modes",
    "session.recompilation": "follow",
    "session.resolved": "mean_loss",
    "session.training_calls": "_program_for note_updates prepare train",
    "session.weights.tracker": "notice_edits trained",
    "torch_names.engines": "event_handlers_of",
}
"""The functions that are called, by the module."""


def steady_calls() -> Counter[Tuple[str, str]]:
    """Return the calls between the ends of two iterations, after the trainer has made eight."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    trainer = create_ipu_trainer(model, torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss())
    loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.randint(2, (40,))), batch_size=4)
    count = CallCounter()
    before = sys.getprofile()
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=8), lambda: sys.setprofile(count))
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=9), lambda: sys.setprofile(before))
    try:
        trainer.run(loader)
    finally:
        sys.setprofile(before)
        trainer.ipu.close()
    return count.calls


def test_a_steady_iteration_makes_these_calls_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers may become smaller; a larger one is to be explained. No optimizer has hooks."""
    for key in list(GLOBAL_PRE_HOOKS):  # of steps on the host, in other tests
        monkeypatch.delitem(GLOBAL_PRE_HOOKS, key)
    calls = steady_calls()
    found = {f"{module} {name}" for module, name in calls}
    known = {f"{module} {name}" for module, names in CALLED.items() for name in names.split()}
    assert found <= known
    most, files = MOST
    assert sum(calls.values()) <= most and len({file for file, _ in calls}) <= files
