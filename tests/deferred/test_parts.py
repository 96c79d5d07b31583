"""Loops that call the parts of a captured model, of which one normalises by batches and writes its statistics."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List

import pytest
import torch
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.errors import CaptureError

X = torch.randn(6, 8, 4, generator=torch.Generator().manual_seed(5))
See = Callable[[Any], None]


class Parts(nn.Module):
    """Features and a head, which a loop may call by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.Tanh())
        self.head = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.features(x))
        return output


def loss_after_backward(model: Any, optimizer: Any, x: torch.Tensor, see: See) -> None:
    loss = model.head(model.features(x)).square().mean()
    loss.backward()
    see(loss.item())
    optimizer.step()
    optimizer.zero_grad()


def loss_before_backward(model: Any, optimizer: Any, x: torch.Tensor, see: See) -> None:
    loss = model.head(model.features(x)).square().mean()
    see(loss.item())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def features(model: Any, optimizer: Any, x: torch.Tensor, see: See) -> None:
    found = model.features(x)
    see(found.detach().clone())
    model.head(found).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def statistics(model: Any, optimizer: Any, x: torch.Tensor, see: See) -> None:
    loss = model.head(model.features(x)).square().mean()
    see(model.features[1].running_mean.clone())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def discarded(model: Any, optimizer: Any, x: torch.Tensor, see: See) -> None:
    model.features(x + 1)
    loss_after_backward(model, optimizer, x, see)


def beside_the_whole(model: Any, optimizer: Any, x: torch.Tensor, see: See) -> None:
    loss = model.head(model.features(x)).square().mean() + model(x + 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    see(loss.item())


def evaluated_between(model: Any, optimizer: Any, x: torch.Tensor, see: See) -> None:
    loss = model.head(model.features(x)).square().mean()
    model.eval()
    with torch.no_grad():
        see(model(x).clone())
    model.train()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def other_mode_before_backward(model: Any, optimizer: Any, x: torch.Tensor, see: See) -> None:
    model.train()
    loss = model.head(model.features(x)).square().mean()
    model.eval()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    see(loss.item())


@pytest.mark.parametrize("update", ["device", "auto", "host"])
@pytest.mark.parametrize(
    "body",
    [
        *(loss_after_backward, loss_before_backward, features, statistics, discarded, beside_the_whole),
        *(evaluated_between, other_mode_before_backward),
    ],
)
def test_statistics_are_written_once_and_seen_at_once(body: Callable[..., None], update: str) -> None:
    seen: Dict[str, List[Any]] = {"eager": [], update: []}
    for each, found in seen.items():
        torch.manual_seed(0)
        model: Any = Parts()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if each != "eager":
            model = ipu_prepare(model, optimizer, config=IPUConfig(update=each))
        for x in X:
            body(model, optimizer, x, found.append)
        found.append(copy.deepcopy(model.state_dict()))
    torch.testing.assert_close(seen[update], seen["eager"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("update", ["auto", "host"])
def test_a_head_of_no_prepared_model_gets_gradients(update: str) -> None:
    seen: Dict[str, List[Any]] = {"eager": [], update: []}
    for each, found in seen.items():
        torch.manual_seed(0)
        model, head = nn.Linear(4, 3), nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if each != "eager":
            ipu_prepare(model, optimizer, config=IPUConfig(update=each))
        for x in X:
            loss = head(model(x)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found += [loss.item(), head.weight.grad.clone()]
    torch.testing.assert_close(seen[update], seen["eager"], rtol=1e-4, atol=1e-5)


def test_weights_that_are_frozen_after_parts_were_called_are_refused_on_the_device() -> None:
    model: Any = Parts()
    ipu_prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loss = model.head(model.features(X[0])).square().mean()
    model.head.weight.requires_grad_(False)
    with pytest.raises(CaptureError, match=r"frozen or unfrozen after they were used at .*parts\.py:\d+ and before"):
        loss.backward()


def test_the_device_computes_gradients_of_parts_for_updates_on_the_host(caplog: pytest.LogCaptureFixture) -> None:
    model: Any = Parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ipu_prepare(model, optimizer, config=IPUConfig(update="host"))
    loss_after_backward(model, optimizer, X[0], lambda value: None)
    assert "each backward pass copies" in caplog.text


@pytest.mark.parametrize("update", ["device", "auto", "host"])
def test_a_function_of_a_weight_and_a_buffer_has_what_calls_before_it_have_written(update: str) -> None:
    torch.manual_seed(0)
    native = Parts()
    model = copy.deepcopy(native)
    ipu_prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), config=IPUConfig(update=update))
    read = []
    for each in (native, model):
        loss = each(X[0]).square().mean()
        norm: Any = each.features[1]
        read.append((norm.weight * norm.running_mean).sum().item())
        loss.backward()
    assert read[1] == pytest.approx(read[0]) and read[0] != 0


class Counting(nn.Module):
    """A model that counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        output: torch.Tensor = self.layer(x)
        return output


@pytest.mark.parametrize("update", ["device", "auto", "host"])
@pytest.mark.parametrize("first", [False, True], ids=["after the call", "before the call"])
@pytest.mark.parametrize("late", [False, True], ids=["read before the step", "read after the step"])
def test_a_function_of_a_weight_and_a_buffer_has_their_values_of_its_time(first: bool, late: bool, update: str) -> None:
    seen: Dict[str, List[float]] = {"eager": [], update: []}
    for each, found in seen.items():
        torch.manual_seed(0)
        model: Any = Counting()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if each != "eager":
            model = ipu_prepare(model, optimizer, config=IPUConfig(update=each))
        for x in X:
            product = model.layer.weight.sum() * model.calls if first else None
            loss = model(x).square().mean()
            product = model.layer.weight.sum() * model.calls if product is None else product
            if not late:
                found.append(product.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(product.item())
        found.append(model.calls.item())
    assert seen[update] == pytest.approx(seen["eager"], rel=1e-4)


def test_statistics_of_no_prepared_model_are_refused_after_those_of_a_part() -> None:
    """Both layers have the same shapes."""
    model: Any = Parts()
    model.norm = nn.BatchNorm1d(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ipu_prepare(model, optimizer, config=IPUConfig(update="host"))
    for _ in range(2):
        model.norm(model(X[0])).pow(3).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with pytest.raises(CaptureError, match="into tensors of no prepared model"):
        nn.BatchNorm1d(2)(model(X[0]))
