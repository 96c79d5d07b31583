"""A forward that puts tensors of other shapes in the place of its buffers is refused; of the same shape, it trains."""

from __future__ import annotations

import copy
from typing import Any, List

import pytest
import torch
from ignite.engine import create_supervised_evaluator, create_supervised_trainer
from torch import nn

from ignite_ipu import IPUConfig, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer, captured


class Growing(nn.Module):
    """Keeps a table of the longest input so far, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.longest = 0
        self.grow(4)

    def grow(self, length: int) -> None:
        self.longest = length
        self.register_buffer("table", torch.cos(torch.arange(float(length))), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.size(1) > self.longest:
            self.grow(x.size(1))
        scores: torch.Tensor = self.linear(x * self.table[: x.size(1), None])
        return scores


class Averaging(nn.Module):
    """Assigns an average, which is a buffer or a plain attribute, and goes on with the previous one, too."""

    mean: torch.Tensor
    before: torch.Tensor

    def __init__(self, registers: bool) -> None:
        super().__init__()
        self.linear, self.scores = nn.Linear(6, 4), nn.Linear(4, 2)
        self.register_buffer("before", torch.zeros(4))
        if registers:
            self.register_buffer("mean", torch.zeros(4))
        else:
            self.mean = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, previous = self.linear(x), self.mean
        if self.training:
            self.before, self.mean = self.mean, 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        scores: torch.Tensor = self.scores(hidden * previous + self.before - self.mean.exp())
        return scores


class Undetached(nn.Module):
    """Assigns an average through which gradients flow."""

    mean: torch.Tensor

    def __init__(self, registers: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        if registers:
            self.register_buffer("mean", torch.zeros(4))
        else:
            self.mean = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * self.linear(x).mean(0)
        return self.mean


def prepared(model: nn.Module) -> Any:
    capture_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture_optimizer(optimizer)
    return optimizer


def test_a_cache_that_grows_in_training() -> None:
    """Shorter inputs go on, and the model is an ordinary one afterwards, in which it may grow."""
    model = Growing()
    native = copy.deepcopy(model)
    optimizer = prepared(model)
    own = torch.optim.SGD(native.parameters(), lr=0.1)
    for length in (3, 4):
        x = torch.randn(2, length, 6)
        for net, update in ((native, own), (model, optimizer)):
            net(x).pow(2).mean().backward()
            update.step()
            update.zero_grad()
        with pytest.raises(CaptureError, match=r"test_replaced.*Growing.forward puts.*\(table\)\. .*longest input"):
            model(torch.randn(2, 6, 6))
        assert (model.longest, len(model.table)) == (4, 4)
    torch.testing.assert_close(model.state_dict(), native.state_dict())
    captured(model).close()  # type: ignore[union-attr]
    x = torch.randn(2, 6, 6)
    torch.testing.assert_close(model(x), native(x))
    assert (model.longest, len(model.table)) == (6, 6)


def test_a_cache_that_grows_before_training() -> None:
    """It is the one that is compiled."""
    model = Growing()
    native = copy.deepcopy(model)
    optimizer = prepared(model)
    x = torch.randn(2, 6, 6)
    with torch.no_grad():
        for length in (3, 6):
            torch.testing.assert_close(model(x[:, :length]), native(x[:, :length]))
    assert len(model.table) == 6
    model(x).mean().backward()
    optimizer.step()
    native(x).mean().backward()
    torch.optim.SGD(native.parameters(), lr=0.1).step()
    torch.testing.assert_close(model.state_dict(), native.state_dict())


@pytest.mark.parametrize("registers", [True, False])
@pytest.mark.parametrize("update", ["device", "host"])
def test_averages_that_are_assigned(registers: bool, update: Any) -> None:
    """In training, in two calls of one update, in calls that no update follows, and in evaluation."""

    def played(captures: bool) -> List[torch.Tensor]:
        torch.manual_seed(0)
        model = Averaging(registers)
        if captures:
            capture_model(model, IPUConfig(update=update))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captures:
            capture_optimizer(optimizer)
        found, x = [], torch.randn(5, 3, 6)
        for number in range(4):
            optimizer.zero_grad()
            loss = model(x[number]).pow(2).mean()
            if number % 2:
                loss = loss + model(x[number + 1]).pow(2).mean()
            loss.backward()
            optimizer.step()
            found += [loss.detach(), model.mean.clone(), model.before.clone()]
        model(x[0])
        found.append(model.mean.clone())
        model.eval()
        with torch.no_grad():
            found.append(model(x[0]))
        assert sorted(model.state_dict()) == sorted(Averaging(registers).state_dict())
        return [*found, *[each.detach().clone() for each in model.parameters()]]

    torch.testing.assert_close(played(True), played(False), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("registers", "reason"), [(True, r"detach\(\)"), (False, "in every call")])
def test_averages_through_which_gradients_flow(registers: bool, reason: str) -> None:
    """PyTorch goes backward through the previous calls, too."""
    model = Undetached(registers)
    prepared(model)
    with pytest.raises(CaptureError, match=reason):
        model(torch.ones(2, 6))


def test_an_engine_with_a_buffer_that_is_assigned() -> None:
    """It is written in training, and read in evaluation."""
    found = []
    for factories in (
        (create_supervised_trainer, create_supervised_evaluator),
        (create_ipu_trainer, create_ipu_evaluator),
    ):
        torch.manual_seed(0)
        model = Averaging(registers=True)
        optimizer, batches = torch.optim.SGD(model.parameters(), lr=0.1), list(zip(*torch.randn(2, 3, 4, 6)))
        trainer: Any = factories[0](model, optimizer, lambda y, _: y.pow(2).mean())  # type: ignore[operator]
        evaluator: Any = factories[1](model)  # type: ignore[operator]
        trainer.run(batches, max_epochs=2)
        evaluator.run(batches)
        found.append([*model.state_dict().values(), evaluator.state.output[0]])
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
