"""Modes of modules: one for each, and the same after a block that changes them, even if it fails."""

from __future__ import annotations

import contextlib

from torch import nn

from ignite_ipu.program.guards.modes import modes_kept, modes_of


def test_modes_come_back():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(), nn.ReLU()))
    model[1].eval()
    before = modes_of(model)
    assert before == [True, True, False, False, False]
    with contextlib.suppress(KeyError), modes_kept(model):
        model.eval()
        model[1][0].train()
        assert modes_of(model) == [False, False, False, True, False]
        raise KeyError
    assert modes_of(model) == before
