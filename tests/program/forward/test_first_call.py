"""Values that only the first call of a model sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable, List

import pytest
import torch
from torch import nn

from ignite_ipu.errors import SessionError
from ignite_ipu.program.forward.first_call import set_once


class Codebook(nn.Module):
    """Begins with the first vectors, in a random order, and follows all of them."""

    def __init__(self, follows: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("vectors", torch.zeros(3, 2))
        self.register_buffer("ready", torch.tensor(False))
        self.register_buffer("calls", torch.zeros(()))
        self._follows = follows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if not self.ready:
            self.vectors.copy_(x[torch.randperm(len(x))[:3]])
            self.scale.data = 1 / x.std(0)
            self.ready.fill_(True)
        if self._follows:
            self.vectors.mul_(0.5).add_(0.5 * x.mean(0))
        return self.norm(x * self.scale) @ self.vectors.t()


@pytest.mark.parametrize("follows", [False, True])
def test_values_are_those_before_each_call_writes(follows: bool) -> None:
    """Tensors are restored; random numbers go on as after one call."""
    x = torch.randn(6, 2)
    torch.manual_seed(0)
    expected = x[torch.randperm(6)[:3]]
    after = torch.rand(2)
    model = Codebook(follows)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    memory = model.scale.data_ptr()
    torch.manual_seed(0)
    found = set_once(model, lambda: model(x)).values
    torch.testing.assert_close(found, {"vectors": expected, "scale": 1 / x.std(0), "ready": torch.tensor(True)})
    torch.testing.assert_close(torch.rand(2), after)
    torch.testing.assert_close(dict(model.state_dict()), before)
    assert model.scale.data_ptr() == memory


class Odd(nn.Module):
    """Computes, writes or counts in another way at its first calls."""

    def __init__(self, then: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("calls", torch.zeros(()))
        self.first, self.number, self._then = True, 0, then
        self.state = SimpleNamespace(first=True, number=0, mask=None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        result = self._then(self, x)
        self.first = False
        return result


def other_result(model: Odd, x: torch.Tensor) -> torch.Tensor:
    if model.first:
        model.mean.copy_(x.mean(0))
        return x
    return x - model.mean


def only_other_result(model: Odd, x: torch.Tensor) -> torch.Tensor:
    return 3 * x if model.first else x


def each_weight(model: Odd, x: torch.Tensor) -> torch.Tensor:
    model.weight.data.mul_(0.5)
    return x * model.weight


def by_turns(model: Odd, x: torch.Tensor) -> torch.Tensor:
    if model.calls % 2:
        model.mean.add_(x.mean(0))
    return x


def nothing(model: Odd, x: torch.Tensor) -> torch.Tensor:
    return x * model.weight


def two_calls(model: Odd, x: torch.Tensor) -> torch.Tensor:
    if model.number < 2:
        model.number += 1
        model.mean.add_(x.mean(0) / 2)
    return x - model.mean


def other_result_by_an_object(model: Odd, x: torch.Tensor) -> torch.Tensor:
    if model.state.first:
        model.state.first = False
        return 3 * x
    return x


def other_result_by_a_new_object(model: Odd, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(model.state, "begun"):
        model.state.begun = SimpleNamespace(number=3)
        return 3 * x
    return x


def same_result(model: Odd, x: torch.Tensor) -> torch.Tensor:
    if model.state.first:
        model.state.first = False
        model.state.mask = torch.rand(2) < 2
    return x * model.state.mask


def each_result(model: Odd, x: torch.Tensor) -> torch.Tensor:
    model.state.number += 1
    return x * model.state.number


@pytest.mark.parametrize(
    ("then", "refusal", "counters"),
    [
        (other_result, "returns another result than a later call with the values that it has set .first, mean.", []),
        (only_other_result, "returns another result than a later call", []),
        (other_result_by_an_object, r"with the values that it has set \(first, self.state.first\)", []),
        (other_result_by_a_new_object, r"with the values that it has set \(begun, first\)", []),
        (same_result, "", []),
        (each_result, "", ["self.state.number"]),
        (each_weight, "writes into a weight", []),
        (by_turns, "", []),
        (nothing, "", []),
        (two_calls, "", ["number"]),
    ],
)
def test_other_forwards_set_nothing_or_are_refused(then: Any, refusal: str, counters: List[str]) -> None:
    """Also where Python values alone record the first call."""
    model = Odd(then)
    if refusal:
        with pytest.raises(SessionError, match=refusal):
            set_once(model, lambda: model(torch.ones(3, 2)))
    else:
        found = set_once(model, lambda: model(torch.ones(3, 2)))
        assert found.counters == counters and (counters or not found.values)
    assert model.weight.tolist() == [1, 1] and model.mean.tolist() == [0, 0]
