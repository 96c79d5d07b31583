"""A forward that takes gradients away from parameters, or gives them back, does so in the program."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch


class Pair(nn.Module):
    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 1)
        self.function = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.function(self, x), torch.zeros(4, 1, device=x.device))


def _assign(layer: nn.Module, value: bool) -> None:
    for parameter in layer.parameters():
        parameter.requires_grad = value


def _call_each(layer: nn.Module, value: bool) -> None:
    for parameter in layer.parameters():
        parameter.requires_grad_(value)


SPELLINGS: Dict[str, Callable[[nn.Module, bool], Any]] = {
    "assignment": _assign,
    "parameter.requires_grad_": _call_each,
    "module.requires_grad_": lambda layer, value: layer.requires_grad_(value),
}


def _train(model: Pair, x: torch.Tensor, steps: int = 2) -> Dict[str, torch.Tensor]:
    """Return the weights that plain PyTorch trains."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
    return {name: value.detach() for name, value in model.state_dict().items()}


def _train_on_ipu(model: Pair, x: torch.Tensor, steps: int = 2) -> Dict[str, torch.Tensor]:
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    for _ in range(steps):
        executor(x)
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    executor.destroy()
    return weights


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("which", ["a", "b", "both"])
def test_what_forward_freezes_is_not_trained(name, which):
    def forward(model: Pair, x: torch.Tensor) -> torch.Tensor:
        for layer in ("a", "b"):
            if which in (layer, "both"):
                SPELLINGS[name](getattr(model, layer), False)
                assert not getattr(model, layer).weight.requires_grad
        return model.b(model.a(x).relu())

    torch.manual_seed(0)
    model, x = Pair(forward), torch.randn(4, 3)
    before = copy.deepcopy(model.state_dict())
    reference = copy.deepcopy(model)
    found = _train_on_ipu(model, x)
    assert all(parameter.requires_grad for parameter in model.parameters())  # forward had stand-ins of them
    expected = before if which == "both" else _train(reference, x)
    torch.testing.assert_close(found, expected)
    frozen = [key for key in found if which in (key[0], "both")]
    assert frozen and all(torch.equal(found[key], before[key]) for key in frozen)


@pytest.mark.parametrize("name", SPELLINGS)
def test_what_forward_thaws_again_is_trained_by_what_follows(name):
    """As a generator is by a loss that goes through the discriminator, and the other way round."""

    def forward(model: Pair, x: torch.Tensor) -> torch.Tensor:
        first = model.a(x)
        SPELLINGS[name](model.a, False)
        second = model.a(x.cos())
        SPELLINGS[name](model.a, True)
        return model.b((first * second).tanh() + model.a(x.sin()))

    def detached(model: Pair, x: torch.Tensor) -> torch.Tensor:
        first = model.a(x)
        second = nn.functional.linear(x.cos(), model.a.weight.detach(), model.a.bias.detach())
        return model.b((first * second).tanh() + model.a(x.sin()))

    torch.manual_seed(0)
    model, x = Pair(forward), torch.randn(4, 3)
    reference = copy.deepcopy(model)
    reference.function = detached
    torch.testing.assert_close(_train_on_ipu(model, x), _train(reference, x))


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_parameter_frozen_before_wrapping_cannot_be_thawed_by_forward(name):
    def forward(model: Pair, x: torch.Tensor) -> torch.Tensor:
        SPELLINGS[name](model.a, True)
        return model.b(model.a(x))

    model = Pair(forward)
    model.a.requires_grad_(False)
    executor = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(poptorch.Error, match=r"requires_grad of a\.weight"):
        executor(torch.randn(4, 3))


def test_inference_ignores_what_is_trained():
    def forward(model: Pair, x: torch.Tensor) -> torch.Tensor:
        model.a.requires_grad_(False)
        model.b.weight.detach_()
        return model.b(model.a(x.requires_grad_()))

    model, x = Pair(forward), torch.randn(4, 3)
    with torch.no_grad():
        expected = nn.functional.mse_loss(model.b(model.a(x)), torch.zeros(4, 1))
    torch.testing.assert_close(poptorch.inferenceModel(model)(x), expected)
