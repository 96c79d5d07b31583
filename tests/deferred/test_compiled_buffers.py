"""Integers and booleans in buffers are current in every captured update and evaluation, as in PyTorch."""

from __future__ import annotations

import logging
from typing import Any, Callable, List, Tuple

import pytest
import torch
from torch import nn

from ignite_ipu.deferred import capture_model, capture_optimizer

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


class Scaled(nn.Module):
    """A layer that divides by a whole number and lets some features pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 3)
        self.register_buffer("divisor", torch.tensor(1))
        self.register_buffer("mask", torch.ones(6, dtype=torch.bool), persistent=False)
        self.order = nn.Parameter(torch.arange(6), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = torch.where(self.mask, x[:, self.order], torch.zeros(()))
        output: torch.Tensor = self.layer(features) / self.divisor
        return output


def loop(edit: Callable[[Any, int], None], captures: bool) -> Tuple[List[float], Any]:
    """Train and evaluate in turns, with an edit after every other update; returns all values and the weights."""
    model: Any = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if captures:
        capture_model(model)
        capture_optimizer(optimizer)
    values = []
    for iteration in range(6):
        loss = model.train()(X).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        values.append(loss.item())
        if iteration % 2:
            with torch.no_grad():
                edit(model, iteration)
        with torch.no_grad():
            values.append(model.eval()(X).sum().item())
    return values, {name: tensor.clone() for name, tensor in model.state_dict().items()}


def load(model: Any, iteration: int) -> None:
    model.load_state_dict({**model.state_dict(), "divisor": torch.tensor(iteration + 1)})


def reverse(model: Any, iteration: int) -> None:
    model.order.copy_(model.order.flip(0).clone())


def drop(model: Any, iteration: int) -> None:
    model.mask[iteration] = False


EDITS = [
    lambda model, iteration: model.divisor.add_(1),
    lambda model, iteration: model.divisor.data.add_(1),
    lambda model, iteration: model.divisor.fill_(iteration + 1),
    load,
    reverse,
    drop,
]


@pytest.mark.parametrize("edit", EDITS)
def test_writes_reach_updates_and_evaluations(
    edit: Callable[[Any, int], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Each is compiled again, with a reason in the log."""
    values, weights = loop(edit, captures=False)
    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        captured_values, captured_weights = loop(edit, captures=True)
    assert captured_values == pytest.approx(values, rel=1e-4)
    torch.testing.assert_close(captured_weights, weights)
    messages = [record.getMessage() for record in caplog.records if "integers or booleans" in record.getMessage()]
    # Two writes before an update, and three before an evaluation.
    assert len(messages) == 5


def test_programs_that_were_set_aside_follow() -> None:
    """Two bodies in turns have a program each, which are compiled again when their turn comes."""
    results = []
    for captures in (False, True):
        model: Any = Scaled()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captures:
            capture_model(model)
            capture_optimizer(optimizer)
        values = []
        for iteration in range(8):
            output = model(X)
            loss = output.pow(2).mean() if iteration % 2 else output.abs().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            values.append(loss.item())
            if iteration == 4:
                model.divisor.add_(1)
        results.append(values)
    assert results[1] == pytest.approx(results[0], rel=1e-4)
