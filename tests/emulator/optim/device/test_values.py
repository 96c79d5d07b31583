"""Names and numbers of the variable hyper-parameters in a state dictionary."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest
import torch

from ignite_ipu.emulator import optim
from ignite_ipu.emulator.optim.description import describe
from ignite_ipu.emulator.optim.device.optimizer import device_values


def parameters() -> List[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(2))]


def values(optimizer: torch.optim.Optimizer, **group_of: Any) -> Dict[str, float]:
    description = describe(optimizer)
    found = device_values(description, group_of or {"w": 0})
    assert all(tensor.shape == () and tensor.dtype == torch.float32 for tensor in found.values())
    return {name: tensor.item() for name, tensor in found.items()}


def close(**expected: float) -> Any:
    return pytest.approx({f"{name}___specific___w": value for name, value in expected.items()})


def test_only_variable_values_appear() -> None:
    assert values(optim.Adam(parameters())) == {}
    assert values(optim.Adam(parameters(), lr=0.5)) == close(learningRate=0.5)
    assert values(torch.optim.Adam(parameters(), lr=0.5, weight_decay=0.25)) == close(
        learningRate=0.5, weightDecay=0.25
    )


def test_adam_lamb_and_rmsprop_show_their_values_as_they_are() -> None:
    assert values(optim.LAMB(parameters(), 0.5, (0.25, 0.75), 0.125, 0.0625, max_weight_norm=8.0)) == close(
        learningRate=0.5, beta1=0.25, beta2=0.75, eps=0.125, weightDecay=0.0625, maxWeightNorm=8.0
    )
    assert values(optim.RMSprop(parameters(), 0.5, 0.75, 0.125, 0.0625, 0.25)) == close(
        learningRate=0.5, alpha=0.75, eps=0.125, weightDecay=0.0625, momentum=0.25
    )


def test_sgd_shows_the_factors_of_its_update() -> None:
    """Without momentum: w <- w * weightDecayScaleFactor0 - scaledLearningRate0 * (loss-scaled gradient)."""
    sgd = optim.SGD(parameters(), 0.5, dampening=0.5, weight_decay=0.25, loss_scaling=4.0)
    found = values(sgd)
    assert found.pop("lossScaling_FLOAT") == 4.0
    assert found == close(scaledLearningRate0=0.5 * 0.5 / 4.0, weightDecayScaleFactor0=1 - 0.5 * 0.5 * 0.25)


def test_sgd_with_momentum_shows_factors_for_its_variant() -> None:
    separate = values(optim.SGD(parameters(), 0.5, 0.9, 0.5, 0.25, loss_scaling=4.0))
    assert separate.pop("lossScaling_FLOAT") == 4.0
    assert separate == close(
        scaledLearningRate2=0.5 / 4, scaledWeightDecay2=0.5 * 0.25 * 4, dampeningScaleFactor2=0.5, scaledMomentum2=0.9
    )
    combined = values(optim.SGD(parameters(), 0.5, 0.9, 0.5, 0.25, velocity_scaling=8.0, use_combined_accum=True))
    assert combined == close(
        scaledLearningRate1=0.5 / 8,
        scaledWeightDecay1=0.5 * 0.25 * 8,
        dampeningScaleFactor1=0.5 * 8,
        scaledMomentum1=0.9,
    )


def test_each_weight_has_its_groups_values_and_the_defaults_appear_once() -> None:
    optimizer = torch.optim.Adam([{"params": parameters()}, {"params": parameters(), "lr": 0.25}], lr=0.5)
    assert values(optimizer, a=0, b=1, c=None, d=None) == {
        "learningRate___specific___a": 0.5,
        "learningRate___specific___b": 0.25,
        "learningRate___default___FLOAT": 0.5,
    }
