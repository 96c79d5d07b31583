"""Modes come back after a block; parameters, buffers and modules that models are given are counted, nothing else."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, Callable

import pytest
import torch
from torch import nn
from torch.nn.modules import module as of_all_modules

from ignite_ipu.program.module_state import REGISTRATIONS, modes_kept, modes_of


def test_modes_come_back() -> None:
    """One for each module, and the same after a block that changes them, even if it fails."""
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
    with modes_kept(model, [False] * 5):
        assert not any(modes_of(model))
    assert modes_of(model) == before


def network() -> Any:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[0].register_buffer("scale", torch.ones(2))
    return model


def assign(model: Any) -> None:
    if "assign" not in model.load_state_dict.__code__.co_varnames:
        pytest.skip("this PyTorch copies what it loads")
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (lambda model: setattr(model[0], "weight", nn.Parameter(torch.zeros(2, 2))), True),
        (lambda model: setattr(model[0], "scale", torch.zeros(2)), True),
        (lambda model: model[1].register_buffer("more", torch.zeros(2)), True),
        (assign, True),
        (lambda model: model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()}), False),
        (lambda model: model[0].weight.data.zero_(), False),
        (lambda model: setattr(model[0], "history", [1]), False),
        (lambda model: model.train().double().float().requires_grad_(False), False),
        (copy.deepcopy, False),
        (lambda model: nn.CrossEntropyLoss(), False),
    ],
)
def test_what_is_counted(change: Callable[[Any], Any], counts: bool) -> None:
    """Given tensors are, written ones are not; nor are buffers that are None, as those of a loss that a loop makes."""
    model = network()
    REGISTRATIONS.follow()
    before = REGISTRATIONS.count
    change(model)
    assert (REGISTRATIONS.count != before) is counts


def test_hooks_of_others_stay_in_force() -> None:
    """They are called as before, and ours is installed once and changes nothing."""
    model = network()
    REGISTRATIONS.follow()
    installed = len(of_all_modules._global_parameter_registration_hooks)
    REGISTRATIONS.follow()
    assert len(of_all_modules._global_parameter_registration_hooks) == installed
    replaced = nn.Parameter(torch.ones(2, 2))
    handle = of_all_modules.register_module_parameter_registration_hook(lambda module, name, tensor: replaced)
    try:
        model[0].weight = nn.Parameter(torch.zeros(2, 2))
    finally:
        handle.remove()
    assert model[0].weight is replaced
