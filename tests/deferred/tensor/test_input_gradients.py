"""Gradients of inputs are refused with a way out, which gives the native numbers."""

from __future__ import annotations

import copy
from typing import Any, Callable, List, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import ipu_prepare
from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def prepared(model: nn.Module) -> Tuple[nn.Module, Any]:
    capture_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture_optimizer(optimizer)
    return model, optimizer


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def inputs() -> torch.Tensor:
    return X.clone().requires_grad_()


def penalty(model: nn.Module) -> None:
    x = inputs()
    torch.autograd.grad(model(x).sum(), x, create_graph=True)


def attack(model: nn.Module) -> None:
    F.cross_entropy(model(X + torch.zeros_like(X).requires_grad_()), Y).backward()


def of_weights(model: nn.Module) -> None:
    torch.autograd.grad(model(X).sum(), list(model.parameters()))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("ask", [penalty, attack])
def test_asking_for_them_is_refused(ask: Callable[[nn.Module], None], training: bool) -> None:
    """In both modes; the message names a place with gradients of inputs."""
    model, _ = prepared(network())
    model.train(training)
    with pytest.raises(CaptureError, match=r"Gradients of inputs .* on the host.* copy\.deepcopy\(model\)"):
        ask(model)


def test_models_that_nobody_trains() -> None:
    """Their outputs depend on inputs, too."""
    model = network().eval()
    capture_model(model)
    x = inputs()
    with pytest.raises(CaptureError, match=r"evaluation mode.*Gradients of inputs"):
        model(x).sum().backward()
    assert not model(X).requires_grad
    with torch.no_grad():
        assert not model(x).requires_grad


def test_gradients_of_weights_are_the_devices() -> None:
    """They are refused in the same words."""
    model, _ = prepared(network())
    with pytest.raises(CaptureError, match=r"test_input_gradients\.py:\d+ asks .*on the device.*copy\.deepcopy"):
        of_weights(model)


class Force(nn.Module):
    """Returns a derivative of its result, as models of molecules do."""

    def __init__(self, enabled: bool) -> None:
        super().__init__()
        self.energy = nn.Linear(6, 1)
        self.enabled = enabled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(self.enabled or torch.is_grad_enabled()):
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.energy(x).tanh().sum(), x, create_graph=True)[0]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_forward_that_differentiates_is_refused(enabled: bool, training: bool) -> None:
    """It names the line of the forward."""
    model, _ = prepared(Force(enabled))
    model.train(training)
    with pytest.raises(CaptureError, match=r"test_input_gradients\.py:\d+: Force\.forward differentiates.*grad\(\)"):
        model(X)


def test_adversarial_training_with_a_copy() -> None:
    """Examples from a copy of the model on the host, and training on the device, give the native weights."""

    def loop(model: nn.Module, optimizer: Any, captured: bool) -> List[torch.Tensor]:
        losses = []
        for _ in range(3):
            x = inputs()
            attacked = copy.deepcopy(model) if captured else model
            (gradient,) = torch.autograd.grad(F.cross_entropy(attacked(x), Y), x)
            losses.append(F.cross_entropy(model((x + 0.1 * gradient.sign()).detach()), Y))
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        return [loss.detach() for loss in losses]

    native = network()
    expected = loop(native, torch.optim.SGD(native.parameters(), lr=0.1), captured=False)
    model, optimizer = prepared(network())
    found = loop(model, optimizer, captured=True)
    torch.testing.assert_close(torch.stack(found), torch.stack(expected))
    torch.testing.assert_close(model.state_dict(), native.state_dict())


def test_gradients_that_no_update_follows_are_a_copys() -> None:
    """Those of the model itself are refused with that, as for the Fisher information of a network."""

    def squares(model: nn.Module) -> List[torch.Tensor]:
        model.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        return [weight.grad.clone() ** 2 for weight in model.parameters() if weight.grad is not None]

    def train(model: nn.Module, optimizer: Any) -> None:
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(X), Y).backward()
            optimizer.step()

    native = network()
    train(native, torch.optim.SGD(native.parameters(), lr=0.1))
    model = network()
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    train(model, optimizer)
    found = squares(copy.deepcopy(model))
    torch.testing.assert_close(found, squares(native))
    train(model, optimizer)
    assert len(squares(model)) == len(found)
    with pytest.raises(CaptureError, match=r"no update follows are those of copy\.deepcopy\(model\)"):
        model.zero_grad()
