"""A model whose tensors get other shapes or types between updates trains on, with its gradients not cleared yet."""

from __future__ import annotations

from typing import Any, Callable, List

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.deferred import CaptureError

X = torch.randn(9, 8, 4, generator=torch.Generator().manual_seed(3))
Y = torch.randint(0, 3, (9, 8), generator=torch.Generator().manual_seed(4))
CHANGED_AT = 4


def replace_layer(model: Any) -> None:
    model[0] = nn.Linear(5, 8)


def replace_weight(model: Any) -> None:
    old = model[0].weight.detach()
    model[0].in_features, model[0].weight = 5, nn.Parameter(torch.cat([old, torch.zeros(8, 1)], 1))


def freeze_and_remove(model: Any) -> None:
    model[0].weight.requires_grad_(False)
    model[2].bias = None


def train(change: Callable[[Any], None], update: str = "", clears_late: bool = True) -> List[Any]:
    """Train with a change of the model between two updates; returns losses, weights, and gradients that PyTorch has."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def optimizer_of() -> Any:
        optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1, momentum=0.9)
        if update:
            ipu_prepare(model, optimizer, config=IPUConfig(update=update))
        return optimizer

    optimizer, losses = optimizer_of(), []
    for number, (x, y) in enumerate(zip(X, Y)):
        if number == CHANGED_AT:
            change(model)
            optimizer = optimizer_of()
        first: Any = model[0]
        x = torch.cat([x, x[:, :1]], 1) if first.in_features == 5 else x
        loss = F.cross_entropy(model(x), y)
        if clears_late:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not clears_late:
            optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        scores = model(x)
    return [losses, scores, dict(model.state_dict()), model]


@pytest.mark.parametrize("update", ["auto", "device", "host"])
@pytest.mark.parametrize("clears_late", [True, False])
@pytest.mark.parametrize("change", [replace_layer, replace_weight, freeze_and_remove])
def test_a_model_of_another_input_width_trains_on(
    change: Callable[[Any], None], clears_late: bool, update: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its programs are compiled again, so none goes on with the tensors that it was compiled with."""
    found, expected = train(change, update, clears_late), train(change, "", clears_late)
    torch.testing.assert_close(found[:3], expected[:3], rtol=1e-4, atol=1e-5)
    assert "since the model was compiled" not in caplog.text


@pytest.mark.parametrize("update", ["auto", "device", "host"])
def test_a_frozen_parameter_keeps_the_gradient_that_nothing_has_cleared(update: str) -> None:
    """It was the device's, which has it no more: it is refused, as None would be a wrong answer."""
    (*_, native), (*_, model) = train(freeze_and_remove), train(freeze_and_remove, update)
    gradient = native[0].weight.grad
    assert gradient is not None and gradient.any()
    if update == "host":
        torch.testing.assert_close(model[0].weight.grad, gradient, rtol=1e-4, atol=1e-5)
    else:
        with pytest.raises(CaptureError, match="before weights of the model were replaced"):
            model[0].weight.grad.sum()


@pytest.mark.parametrize("update", ["auto", "device", "host"])
def test_a_model_that_gets_another_number_format_is_evaluated(update: str) -> None:
    """The program of the previous format is no program of the model any more."""
    found = []
    for captures in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captures:
            ipu_prepare(model, optimizer, config=IPUConfig(update=update))
        losses = []
        for number, (x, y) in enumerate(zip(X, Y)):
            if number == CHANGED_AT:
                model.double()
            x = x.double() if number >= CHANGED_AT else x
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            found.append([losses, model(X[0].double()).float()])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


class Target(nn.Module):
    """Computes the distance to a target, for the loop."""

    def __init__(self, target: torch.Tensor) -> None:
        super().__init__()
        self.target = target.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.loss = F.mse_loss(x, self.target)
        return x


def built_up(update: str = "") -> List[Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if update:
        ipu_prepare(model, optimizer, config=IPUConfig(update=update))
    targets: List[Target] = []
    for inner in (nn.Tanh(), nn.Linear(8, 3).requires_grad_(False)):
        model.append(inner)
        targets.append(Target(model(X[0])))
        model.append(targets[-1])
    for x in X:
        optimizer.zero_grad()
        model(x)
        loss = targets[0].loss + targets[1].loss
        loss.backward()
        optimizer.step()
    return [loss.item(), dict(model.state_dict())]


@pytest.mark.parametrize("update", ["auto", "device", "host"])
def test_a_model_that_is_built_up_keeps_its_results_of_before(update: str) -> None:
    """As in the transfer of styles, in which targets are results of the layers so far."""
    torch.testing.assert_close(built_up(update), built_up())
