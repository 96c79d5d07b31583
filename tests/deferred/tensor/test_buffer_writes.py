"""Statistics that calls in training mode write are PyTorch's, or refused where a device writes them later or never."""

from __future__ import annotations

import copy
from typing import Any, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
BUFFERS = r"writes buffers \(1\.running_mean, 1\.running_var, 1\.num_batches_tracked\)"


def prepared(captures: bool = True) -> Tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    if captures:
        capture_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture_optimizer(optimizer)
    return model, optimizer


def update(model: Any, optimizer: torch.optim.Optimizer, rows: int = 16) -> None:
    F.cross_entropy(model(X[:rows]), Y[:rows]).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("updates", [0, 1])
def test_an_evaluation_before_the_update_is_refused(updates: int) -> None:
    """PyTorch evaluates with statistics that the device has not written."""
    model, optimizer = prepared()
    for _ in range(updates):
        update(model, optimizer)
    F.cross_entropy(model(X), Y).backward()
    model.eval()
    with pytest.raises(CaptureError, match=rf"evaluated at .*test_buffer_writes\.py.*{BUFFERS}.*Evaluate after"):
        model(X)
    model.train()
    optimizer.step()
    assert model.eval()(X).shape == (16, 2)


@pytest.mark.parametrize("backward", [False, True])
def test_a_call_outside_of_all_updates(backward: bool) -> None:
    """The host writes its statistics before the next update, and has what it returned."""
    states = []
    for captures in (False, True):
        model, optimizer = prepared(captures)
        update(model, optimizer)
        loss = F.cross_entropy(model(X * 2), Y)
        if backward:
            loss.backward()
            optimizer.zero_grad()
        update(model, optimizer)
        update(model, optimizer)
        states.append({"loss": loss.detach(), **model.state_dict()})
    torch.testing.assert_close(states[1], states[0], rtol=1e-4, atol=1e-5)


def test_a_call_between_those_of_an_update_is_refused() -> None:
    """PyTorch writes its statistics after those of a call that the update is of; training can go on."""
    model, optimizer = prepared()
    loss = F.cross_entropy(model(X), Y)
    model(X * 2)
    loss.backward()
    with pytest.raises(CaptureError, match=rf"test_buffer_writes\.py:\d+ {BUFFERS}.*no loss of the update"):
        optimizer.step()
    optimizer.zero_grad()
    update(model, optimizer)


def test_statistics_of_all_calls_of_an_update() -> None:
    """Several micro-batches, a second view, and one that is detached write what they write natively."""
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
    update(model, optimizer)
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
    """What the shorter last batch returns is found out on the host, with the newest buffers in their place."""
    states = []
    for captures in (False, True):
        model = Cosine()
        if captures:
            capture_model(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        capture_optimizer(optimizer)
        for rows in (16, 16, 10, 16):
            update(model, optimizer, rows)
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
        update(model, optimizer)
    assert float(model.calls) == 3


def test_an_argument_that_the_model_writes_into() -> None:
    """The loop would not see what it has become; nor may the look at the model change it."""
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 2))
    capture_model(model)
    x = X.clone()
    with pytest.raises(CaptureError, match=r"test_buffer_writes\.py:\d+, writes into an argument.*\(16, 6\)"):
        model(x)
    assert torch.equal(x, X)
