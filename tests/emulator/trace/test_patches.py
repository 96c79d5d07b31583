"""State that is tracked through the calls of modules, if a model catches an error of one of its modules."""

from __future__ import annotations

from typing import Any, List

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.trace.active import module_calls_followed, running

X = torch.randn(2, 4)


class Failing(nn.Module):
    """A layer that computes something and then gives up."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError(f"not for {self.layer(x).shape}")


class Resilient(nn.Module):
    """Tries one module, and goes on without it if that fails."""

    def __init__(self, attempt: nn.Module) -> None:
        super().__init__()
        self.attempt, self.layer = attempt, nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            x = self.attempt(x)
        except ValueError:
            x = x + 1
        return self.layer(x)


def test_operators_after_a_failed_module_are_in_the_scopes_they_stand_in():
    executor = poptorch.inferenceModel(Resilient(Failing()))
    executor.compile(X)
    nodes = executor._executable.compiled.capture.graph.nodes
    scopes = [(node.meta["operator"], node.meta["scope"]) for node in nodes if "scope" in node.meta]
    assert scopes == [("linear", "attempt/layer"), ("add", ""), ("linear", "layer")]


def test_autocast_of_a_failed_module_ends_with_it():
    """Later values have the same types as without the failure."""
    for attempt in (nn.Identity(), Failing()):
        model = Resilient(attempt)
        model.attempt.autocast(True)
        assert poptorch.inferenceModel(model)(X).dtype is torch.float32


def test_modules_are_called_as_before_after_a_trace():
    before = nn.Module.__call__
    poptorch.inferenceModel(Resilient(Failing()))(X)
    assert nn.Module.__call__ is before


def test_modules_are_called_as_before_where_nothing_follows_them():
    before = nn.Module.__call__
    with module_calls_followed():
        assert nn.Module.__call__ is before


def test_entries_are_removed_where_one_of_them_fails():
    """The call of a module raises the error, and leaves no entry of it."""
    calls: List[Any] = []

    def failing(module: nn.Module) -> Any:
        raise ValueError("no entry")

    with module_calls_followed((calls, lambda module: "entry"), ([], failing)):
        with running(object()), pytest.raises(ValueError, match="no entry"):
            nn.Identity()(X)
    assert calls == []
