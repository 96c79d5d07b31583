"""Buffers that calls in training mode write have PyTorch's values at every read."""

from __future__ import annotations

import copy
import types
from typing import Any, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer
from ignite_ipu.errors import EarlyReadError

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def prepared(captures: bool = True) -> Tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    if captures:
        capture_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture_optimizer(optimizer)
    return model, optimizer


def update_weights(model: Any, optimizer: torch.optim.Optimizer, rows: int = 16) -> None:
    F.cross_entropy(model(X[:rows]), Y[:rows]).backward()
    optimizer.step()
    optimizer.zero_grad()


class Shifted(nn.Module):
    """Adds the running mean of its results to them, and counts its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layer(x) + self.mean
        self.mean.mul_(0.9).add_(scores.detach().mean(0) * 0.1)
        self.seen += len(x)
        return scores


def played(make: Any, events: str, captures: bool) -> Any:
    """Play events of a loop, and return the buffers that are read on the way, and all values after it.

    f: a forward pass whose loss goes backward with b; s: step and clearing; u: an unused call; k: one whose result is
    kept; l: a look at buffers; d: one at the state dictionary; c: one at a copy; e: an evaluation; r: a write of the
    loop into buffers; w: one into the memory of weights; m: other memory for a weight.
    """
    torch.manual_seed(0)
    model, seen, kept = make(), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    if captures:
        capture_model(model)
        capture_optimizer(optimizer)
    for number, event in enumerate(events):
        x, y = X[number % 4 :][:8], Y[number % 4 :][:8]
        if event == "f":
            loss = F.cross_entropy(model(x), y)
        elif event == "b":
            loss.backward()
        elif event == "s":
            optimizer.step()
            optimizer.zero_grad()
        elif event in "uk":
            kept.append(model(x) if event == "k" else model(x) is None)
        elif event == "e":
            with torch.no_grad():
                seen.append(model.eval()(x))
            model.train()
        elif event == "r":
            for buffer in model.buffers():
                buffer.zero_()
        elif event == "w":
            for parameter in model.parameters():
                parameter.data.clamp_(-0.1, 0.1)
        elif event == "m":
            first = next(model.parameters())
            first.data = torch.full_like(first, 0.2)
        else:
            look = {"l": lambda: model.named_buffers(), "d": model.state_dict().items}.get(event)
            pairs = look() if look else copy.deepcopy(model).named_buffers()
            seen += [value.clone() for name, value in pairs if name in dict(model.named_buffers())]
    return [*seen, *model.state_dict().values()]


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


@pytest.mark.parametrize("make", [normed, Shifted])
@pytest.mark.parametrize(
    "events",
    [
        *("fl", "fbd", "fblsfbs", "fbsfblsl", "uuuc", "fbsuudfbs", "flblsl", "fufbs", "fbsfuufbsl", "klfbs"),
        *("fbes", "fbsefbse", "fbsrfbsl", "fbfblsl", "urfbsl"),
        *("uwfbs", "uwl", "uwuwd", "kwl", "fbsuwfbsl", "umfbs", "fbsuwe", "uuwmufbs"),
    ],
)
def test_whoever_looks_at_buffers_sees_what_calls_have_written_by_then(make: Any, events: str) -> None:
    """Before the first update and after it; no call writes twice."""
    expected = played(make, events, captures=False)
    torch.testing.assert_close(played(make, events, captures=True), expected, rtol=1e-4, atol=1e-5)


def test_a_look_at_buffers_of_a_call_that_draws_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """The device would draw other numbers for the update; a call that is no update's draws on the host."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.BatchNorm1d(8))
    capture_model(model)
    model(X)
    assert model[2].running_var.mean() != 1
    output = model(X)
    with pytest.raises(EarlyReadError, match=r"test_buffer_writes\.py:\d+.*draws random numbers.*after optimizer"):
        model[2].running_mean.tolist()
    with pytest.raises(CaptureError, match=r"evaluated at .*test_buffer_writes\.py.*draws random.*Evaluate after"):
        model.eval()(X)
    del output


def test_calls_that_another_update_has_made_are_not_replayed_when_a_layer_is_replaced() -> None:
    """Its loss is also of a parameter of no module, with which the loop of the model is joined."""
    states = []
    for captures in (False, True):
        torch.manual_seed(0)
        model: Any = Shifted()
        temperature = nn.Parameter(torch.ones(()))
        optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
        if captures:
            capture_model(model)
            capture_optimizer(optimizer)
        for wrapped in (True, False):
            F.cross_entropy(model(X) * temperature, Y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if wrapped:
                model.layer = nn.Sequential(model.layer, nn.Tanh())
        states.append(model.state_dict())
    torch.testing.assert_close(states[1], states[0], rtol=1e-4, atol=1e-5)


class Scaled(nn.Module):
    def __init__(self, settings: Any) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 2), nn.BatchNorm1d(2)
        self.scale, self.settings = 1.0, settings

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(self.layer(x) * (self.scale if self.settings is None else self.settings.scale))


@pytest.mark.parametrize("update", ["device", "auto", "host"])
def test_an_update_is_refused_without_the_writes_of_a_call_that_cannot_be_replayed(update: str) -> None:
    """Updates on the host would lack them, too. No attribute of a module holds the value, so nothing puts it back."""
    model: Any = Scaled(types.SimpleNamespace(scale=1.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ipu_prepare(optimizer, model, config=IPUConfig(update=update))
    model(X)
    model.settings.scale = 2.0
    with pytest.raises(CaptureError, match=r"The host cannot replay the call: Python values .*scale"):
        update_weights(model, optimizer)


@pytest.mark.parametrize("update", ["device", "auto", "host"])
def test_a_call_is_replayed_with_the_attributes_that_it_was_made_with(update: str) -> None:
    """Its statistics are those of eager PyTorch."""
    states = []
    for captures in (False, True):
        torch.manual_seed(0)
        model: Any = Scaled(None)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captures:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        model(X)
        model.scale = 2.0
        update_weights(model, optimizer)
        states.append(model.state_dict())
    torch.testing.assert_close(states[1], states[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backward", [False, True])
def test_a_call_outside_of_all_updates(backward: bool) -> None:
    """The host writes its statistics before the next update, and has its result."""
    states = []
    for captures in (False, True):
        model, optimizer = prepared(captures)
        update_weights(model, optimizer)
        loss = F.cross_entropy(model(X * 2), Y)
        if backward:
            loss.backward()
            optimizer.zero_grad()
        update_weights(model, optimizer)
        update_weights(model, optimizer)
        states.append({"loss": loss.detach(), **model.state_dict()})
    torch.testing.assert_close(states[1], states[0], rtol=1e-4, atol=1e-5)


def test_statistics_of_all_calls_of_an_update() -> None:
    """Several micro-batches, a second view, and one that is detached write the same as in eager PyTorch."""
    models = []
    for captures in (False, True):
        model, optimizer = prepared(captures)
        for number in range(3):
            F.cross_entropy(model(X[:8]), Y[:8]).backward()
            loss = F.cross_entropy(model(X[8:]), Y[8:])
            if number == 1:
                loss = loss + F.mse_loss(model(X * 2), model(X).detach())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        models.append(model)
    native, model = [each.state_dict() for each in models]
    for name, value in native.items():
        if value.is_floating_point():
            torch.testing.assert_close(model[name], value, rtol=1e-4, atol=1e-5)


def test_frozen_statistics_wait_for_nothing() -> None:
    """In evaluation mode the layer writes none."""
    model, optimizer = prepared()
    update_weights(model, optimizer)
    model[1].eval()
    model(X)
    F.cross_entropy(model(X), Y).backward()
    model.eval()(X)
    model.train()
    model[1].eval()
    optimizer.step()


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(2), nn.InstanceNorm1d(2, affine=True, track_running_stats=True)])
@pytest.mark.parametrize("beside", [False, True])
def test_statistics_of_layers_that_are_not_captured_are_refused(norm: Any, beside: bool) -> None:
    """PyTorch would write them; where it writes none, or in evaluation mode, results are PyTorch's."""
    norm = copy.deepcopy(norm).train().requires_grad_(False)

    def losses(captures: bool, norm: Any) -> Any:
        model, optimizer = prepared(captures)
        seen = []
        for _ in range(3):
            output = model(X)
            scores = output.unsqueeze(-1) * X[:, None, :4] if isinstance(norm, nn.InstanceNorm1d) else output
            normed = norm(scores.detach() if beside else scores).reshape(16, 2, -1)[..., 0]
            F.cross_entropy(output if beside else normed, Y).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(normed.sum(0).detach())
        return torch.stack(seen)

    with pytest.raises(CaptureError, match=r"_norm at .*test_buffer_writes\.py.*running statistics of shape \(2,\)"):
        losses(True, norm)
    for plain in (copy.deepcopy(norm).eval(), type(norm)(2, affine=True, track_running_stats=False)):
        expected = losses(False, plain.requires_grad_(False))
        torch.testing.assert_close(losses(True, plain), expected, rtol=1e-3, atol=1e-4)


class Cosine(nn.Module):
    """A classifier whose forward asks a weight for its norm, and that has statistics."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.weight = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Parameter(torch.randn(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.first(x)) @ (self.weight / self.weight.norm(dim=0))


def test_another_shape_keeps_what_was_written() -> None:
    """The host finds the result of the shorter last batch, with the newest buffers in their place."""
    states = []
    for captures in (False, True):
        model = Cosine()
        if captures:
            capture_model(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        capture_optimizer(optimizer)
        for rows in (16, 16, 10, 16):
            update_weights(model, optimizer, rows)
        states.append(model.state_dict())
    for name, value in states[0].items():
        if value.is_floating_point():
            torch.testing.assert_close(states[1][name], value, rtol=1e-4, atol=1e-5)


class Counting(nn.Module):
    """A network whose output depends on how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x) / self.calls


def test_counters() -> None:
    """Floats count; `program/forward/test_weight_writes.py` has integers."""
    model = Counting()
    capture_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture_optimizer(optimizer)
    for _ in range(3):
        update_weights(model, optimizer)
    assert float(model.calls) == 3


def test_an_argument_that_the_model_writes_into() -> None:
    """The loop would not see its new value; nor may the look at the model change it."""
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 2))
    capture_model(model)
    x = X.clone()
    with pytest.raises(CaptureError, match=r"test_buffer_writes\.py:\d+, writes into an argument.*\(16, 6\)"):
        model(x)
    assert torch.equal(x, X)
