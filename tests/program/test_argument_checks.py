"""Tests whose only consequence is an error pass in a compiled program; the host makes them for the first batch."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

from ignite_ipu import create_ipu_trainer, ipu_prepare
from ignite_ipu.program.argument_checks import passing_value
from ignite_ipu.program.user_code import current_line

X, Y = torch.linspace(-1, 1, 24).view(4, 6), torch.tensor([0, 1, 0, 1])


class Asked:
    """Says of each test that it is asked in whether it is a check, and which of its values lets it pass."""

    def __init__(self, number: int, answers: Any) -> None:
        self.number, self.answers = number, answers

    def __bool__(self) -> bool:
        passing = passing_value(current_line(inner=sys._getframe()))
        self.answers.append(passing)
        return bool(passing)


def test_which_values_let_checks_pass() -> None:
    found: Any = []
    one, other = Asked(1, found), Asked(2, found)
    assert not one
    if one or other:
        raise ValueError
    if not (one and other):
        raise ValueError("several lines")
    if one:
        found.append("body")
    while other:
        break
    assert found == [False, False, False, True, True, None, None]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python does not tell which value of a line is asked for")
def test_values_of_one_line_that_decide_in_different_ways() -> None:
    found: Any = []
    one, other = Asked(1, found), Asked(2, found)
    if one or not other:
        raise ValueError
    assert found == [False, True]


class Checked(nn.Module):
    def __init__(self, largest: float = 1e6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.largest = nn.Linear(6, 2), largest

    def forward(self, x: torch.Tensor) -> Any:
        scores = self.layer(x)
        assert not torch.isnan(scores).any(), "not a number"
        if not torch.isfinite(scores).all():
            raise ValueError("not finite")
        if scores.abs().max() > self.largest:
            raise ValueError("too large")
        return scores


@pytest.mark.parametrize("door", ["trainer", "loop"])
def test_a_model_with_checks_trains(door: str) -> None:
    weights = []
    for captures in (False, True):
        model = Checked()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captures and door == "trainer":
            create_ipu_trainer(model, optimizer, nn.functional.cross_entropy).run([(X, Y)] * 3)
        else:
            if captures:
                ipu_prepare(model, optimizer)
            for _ in range(3):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(X), Y).backward()
                optimizer.step()
        weights.append(model.layer.weight.detach().clone())
    torch.testing.assert_close(weights[1], weights[0])


def test_the_first_batch_is_checked() -> None:
    model = Checked(largest=1e-6)
    ipu_prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="too large"):
        model(X)


class Decided(Checked):
    def forward(self, x: torch.Tensor) -> Any:
        scores = self.layer(x)
        if scores.sum() > 0:
            scores = -scores
        return scores


def test_other_tests_of_values_are_refused() -> None:
    model = Decided()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ipu_prepare(model, optimizer)
    nn.functional.cross_entropy(model(X), Y).backward()
    with pytest.raises(Exception, match="needs the value of a tensor"):
        optimizer.step()
