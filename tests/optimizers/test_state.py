"""torch's state and the device's are the same tensors under other names."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest
import torch
from torch import nn

from ignite_ipu.errors import OptimizerError
from ignite_ipu.optimizers.kinds import ADAM, KINDS, RMSPROP, SGD
from ignite_ipu.optimizers.state import state_from_torch, state_to_torch

NAMES = ["model.weight", "model.bias"]
SHAPES = [(2, 3), (2,)]
TYPES = [torch.float32, torch.float32]


def trained(make: Any, steps: int = 3) -> Dict[str, Any]:
    """Return the state dict of a torch optimizer after a few native steps."""
    layer = nn.Linear(3, 2)
    optimizer = make(layer.parameters())
    for _ in range(steps):
        layer.zero_grad()
        layer(torch.randn(4, 3)).pow(2).mean().backward()
        optimizer.step()
    state: Dict[str, Any] = optimizer.state_dict()
    return state


CASES = [
    (SGD, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    (SGD, lambda p: torch.optim.SGD(p, lr=0.1)),
    (ADAM, lambda p: torch.optim.Adam(p)),
    (KINDS["AdamW"], lambda p: torch.optim.AdamW(p)),
    (RMSPROP, lambda p: torch.optim.RMSprop(p)),
    (RMSPROP, lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True)),
    (RMSPROP, lambda p: torch.optim.RMSprop(p, momentum=0.5)),
]


@pytest.mark.parametrize(("kind", "make"), CASES)
def test_there_and_back_is_exact(kind: Any, make: Any) -> None:
    """Nothing is lost or rounded on the way to the device and back."""
    saved = trained(make)
    groups = saved["param_groups"]
    device = state_from_torch(saved["state"], NAMES, SHAPES, groups, kind)
    back = state_to_torch(device, NAMES, TYPES, groups, kind, steps=3)
    native = {
        number: entries for number, entries in saved["state"].items() if any(v is not None for v in entries.values())
    }
    assert back.keys() == native.keys()
    for number, entries in native.items():
        assert list(back[number]) == list(entries)
        for slot, value in entries.items():
            # RMSprop's step count is an integer in PyTorch 2.0.
            assert type(back[number][slot]) is type(value)
            torch.testing.assert_close(back[number][slot], value, rtol=0, atol=0)


def test_names_on_the_device() -> None:
    """First and second moment, and the step count, under PopTorch's names."""
    saved = trained(lambda p: torch.optim.Adam(p))
    device = state_from_torch(saved["state"], NAMES, SHAPES, saved["param_groups"], ADAM)
    assert sorted(device) == sorted(
        f"{prefix}___{name}" for prefix in ("Accl1", "Accl2", "Step") for name in ("model.weight", "model.bias")
    )
    assert torch.equal(device["Accl1___model.weight"], saved["state"][0]["exp_avg"])
    assert torch.equal(device["Accl2___model.bias"], saved["state"][1]["exp_avg_sq"])
    assert float(device["Step___model.bias"]) == 3


def test_missing_state_starts_at_zero() -> None:
    """As torch's does; a fresh state therefore resets the device's moments."""
    device = state_from_torch({}, NAMES, SHAPES, [{"momentum": 0.9, "params": [0, 1]}], SGD)
    assert {name: tensor.shape for name, tensor in device.items()} == {
        "Accl1___model.weight": (2, 3),
        "Accl1___model.bias": (2,),
    }
    assert not any(tensor.any() for tensor in device.values())


def test_state_of_a_variable_zero_exists() -> None:
    """The device keeps a velocity for a momentum that may become something else; torch has none yet."""
    groups: List[Dict[str, Any]] = [{"momentum": 0, "params": [0, 1]}]
    assert state_from_torch({}, NAMES, SHAPES, groups, SGD) == {}
    device = state_from_torch({}, NAMES, SHAPES, groups, SGD, variable={"momentum"})
    assert len(device) == 2
    assert state_to_torch(device, NAMES, TYPES, groups, SGD) == {}


def test_entries_follow_what_the_device_has() -> None:
    """Its own names and types win once they are known."""
    saved = trained(lambda p: torch.optim.Adam(p))
    known = {"Accl1___model.bias": torch.zeros(2, dtype=torch.float16)}
    device = state_from_torch(saved["state"], NAMES, SHAPES, saved["param_groups"], ADAM, known=known)
    assert list(device) == ["Accl1___model.bias"]
    assert torch.equal(device["Accl1___model.bias"], saved["state"][1]["exp_avg"].half())


def test_state_of_another_optimizer_is_refused() -> None:
    """Loading Adam's moments into SGD would silently start afresh."""
    saved = trained(lambda p: torch.optim.Adam(p))
    with pytest.raises(OptimizerError, match=r"entries \['exp_avg', 'exp_avg_sq'\], which SGD does not have"):
        state_from_torch(saved["state"], NAMES, SHAPES, saved["param_groups"], SGD)


def test_state_of_another_model_is_refused() -> None:
    """The message has both shapes."""
    saved = trained(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    with pytest.raises(OptimizerError, match=r"'momentum_buffer' for Accl1___model.weight has .*\(2, 3\).*\(3, 2\)"):
        state_from_torch(saved["state"], NAMES, [(3, 2), (2,)], saved["param_groups"], SGD)
