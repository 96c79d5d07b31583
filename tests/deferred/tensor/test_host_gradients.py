"""A penalty on weights: what the host would compute of it is refused with the ways that work, and they do."""

from __future__ import annotations

from typing import Any, Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from ignite.engine import Engine
from torch import nn

from ignite_ipu import IPUAccelerator, ipu_step
from ignite_ipu.deferred import CaptureError
from tests.accelerate_state import forget

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
FACTOR = 0.05


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    forget()
    yield
    forget()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))


def squares(model: nn.Module) -> torch.Tensor:
    return FACTOR * sum((p.pow(2).sum() for p in model.parameters()), torch.zeros(()))


class Penalised(nn.Module):
    """A model that returns a penalty on its weights, too."""

    def __init__(self, penalty: Callable[[nn.Module], torch.Tensor]) -> None:
        super().__init__()
        self.model = network()
        self.penalty = penalty

    def forward(self, x: torch.Tensor) -> Any:
        return self.model(x), self.penalty(self.model)


def trained(accelerator: Any, model: nn.Module, loss_of: Callable[[nn.Module], torch.Tensor], **sgd: Any) -> nn.Module:
    """Make five updates with momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **sgd)
    model, optimizer = accelerator.prepare(model, optimizer)
    for _ in range(5):
        accelerator.backward(loss_of(model))
        optimizer.step()
        optimizer.zero_grad()
    return model


def summed(model: nn.Module) -> torch.Tensor:
    return F.cross_entropy(model(X), Y) + squares(model)


def first(model: nn.Module) -> torch.Tensor:
    penalty = squares(model)
    return F.cross_entropy(model(X), Y) + penalty


def in_place(model: nn.Module) -> torch.Tensor:
    loss = squares(model)
    loss += F.cross_entropy(model(X), Y)
    return loss


def through_the_output(model: nn.Module) -> torch.Tensor:
    return F.cross_entropy(model(X) * model[0].weight.abs().mean(), Y)  # type: ignore[index]


def forward_alone(model: nn.Module) -> torch.Tensor:
    return F.cross_entropy(model.forward(X), Y)


def layer_by_layer(model: nn.Module) -> torch.Tensor:
    x = X
    for layer in model.children():
        x = layer(x)
    return F.cross_entropy(x, Y)


def features_of_a_layer(model: nn.Module) -> torch.Tensor:
    return F.cross_entropy(model(X), Y) + model[0](X).pow(2).mean()  # type: ignore[index]


AROUND_THE_MODEL = [forward_alone, layer_by_layer, features_of_a_layer]


@pytest.mark.parametrize("loss_of", [summed, first, in_place, through_the_output, squares, *AROUND_THE_MODEL])
def test_what_the_host_would_compute_is_refused(loss_of: Callable[[nn.Module], torch.Tensor]) -> None:
    """Before or after the model's call, in a loss or as one: the error names weights, line and ways out."""
    with pytest.raises(CaptureError, match="computed from weights of the captured model") as error:
        trained(IPUAccelerator(), network(), loss_of)
    assert "0.weight" in str(error.value) and __file__ in str(error.value)
    assert "by one of its layers, or by model.forward(...)" in str(error.value)
    assert "weight_decay=2 * c" in str(error.value) and "compute in a forward that is captured" in str(error.value)


def test_a_look_at_weights_is_none() -> None:
    """Detached, or without gradients, a norm of the weights is a number like others."""

    def loss_of(model: nn.Module) -> torch.Tensor:
        with torch.no_grad():
            norm = squares(model)
        return F.cross_entropy(model(X), Y) * (1 + norm) + squares(model).detach()

    expected = trained(Accelerator(cpu=True), network(), loss_of)
    forget()
    same(trained(IPUAccelerator(), network(), loss_of), expected)


def test_the_penalty_as_weight_decay() -> None:
    """Twice the factor, as the error says, gives the weights of the loop with the penalty."""
    expected = trained(Accelerator(cpu=True), network(), summed)
    forget()
    found = trained(IPUAccelerator(), network(), lambda m: F.cross_entropy(m(X), Y), weight_decay=2 * FACTOR)
    same(found, expected)


def absolute(model: nn.Module) -> torch.Tensor:
    return FACTOR * sum((p.abs().sum() for p in model.parameters()), torch.zeros(()))


@pytest.mark.parametrize("penalty", [squares, absolute])
def test_the_penalty_in_a_forward(penalty: Callable[[nn.Module], torch.Tensor]) -> None:
    """A module around the model returns both, and gives the weights of the loop with the penalty."""

    def loss_of(model: nn.Module) -> torch.Tensor:
        scores, extra = model(X)
        return F.cross_entropy(scores, Y) + extra

    expected = trained(Accelerator(cpu=True), network(), lambda m: F.cross_entropy(m(X), Y) + penalty(m))
    forget()
    same(trained(IPUAccelerator(), Penalised(penalty), loss_of).model, expected)  # type: ignore[arg-type]


def test_gradients_of_the_host_alone() -> None:
    """An update that would be made from them is refused, not left out."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(engine: Engine, batch: Any) -> None:
        optimizer.zero_grad()
        squares(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    with pytest.raises(CaptureError, match=r"has a gradient that the host has computed"):
        Engine(ipu_step(step)).run([0])


def same(model: nn.Module, native: nn.Module) -> None:
    for mine, theirs in zip(model.parameters(), native.parameters()):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
