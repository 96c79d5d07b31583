"""The look for replaced tensors: it finds each change, and without one it costs the same with any number of layers."""

from __future__ import annotations

import sys
from typing import Any, Callable
from unittest import mock

import pytest
import torch
from torch import nn

from ignite_ipu.session.weights.held_tensors import HeldTensors


def rename(layer: Any) -> None:
    weight = layer.weight
    del layer.weight
    layer.kernel = weight


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model[0], "weight", nn.Parameter(torch.zeros(2, 2))),
        lambda model: setattr(model[0], "bias", None),
        lambda model: delattr(model[0], "bias"),
        lambda model: model[0]._parameters.update(weight=nn.Parameter(torch.zeros(2, 2))),
        lambda model: model.append(nn.Linear(2, 2)),
        lambda model: model.__delitem__(1),
        lambda model: rename(model[0]),
        lambda model: setattr(model[1], "more", model[0].__dict__["_parameters"].pop("bias")),
    ],
)
def test_a_change_is_found_once(change: Callable[[Any], Any]) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    held = HeldTensors(model)
    assert held.changes == 0
    change(model)
    assert held.changes == 1 and held.replaced(model)
    assert held.changes == 1


def test_a_module_that_came_is_followed_too() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    held = HeldTensors(model)
    model.append(nn.Linear(2, 2))
    assert held.changes == 1
    model[1].bias = None
    assert held.changes == 2


def test_changes_of_other_models_and_values_that_are_put_back_are_none() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    held, held_of_other = HeldTensors(model), HeldTensors(other)
    other.bias = None
    weight = model.weight
    model.weight = nn.Parameter(torch.zeros(2, 2))
    model.weight = weight
    assert held.changes == 0 and held_of_other.changes == 1


def test_a_look_without_a_change_reads_no_table() -> None:
    """So it takes the same time with ten layers and with ten thousand."""
    held = HeldTensors(nn.Sequential(*[nn.Linear(1, 1) for _ in range(5)]))
    calls = []
    with mock.patch.object(HeldTensors, "_look") as look:
        before = sys.getprofile()
        sys.setprofile(lambda frame, event, of: calls.append((event, frame.f_code.co_name)))
        held.changes  # noqa: B018
        sys.setprofile(before)
    assert not look.called
    assert [each for each in calls if each[0] in ("call", "c_call")][:-1] == [("call", "changes")]
