"""`autograd.Function`s that a loop applies to its model's output: refused if gradients flow through them."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


class Reversed(torch.autograd.Function):
    """The identity, with a gradient of the other sign."""

    @staticmethod
    def forward(ctx: Any, first: Any, second: torch.Tensor) -> torch.Tensor:
        return torch.add(first, second)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, -gradients[0]


class Identity(torch.autograd.Function):
    """A function that returns its argument, with a gradient of the other sign."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -gradients[0]


class WithoutContext(torch.autograd.Function):
    """A function whose forward is given no context."""

    @staticmethod
    def forward(value: torch.Tensor) -> torch.Tensor:
        return value * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept for the backward."""

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -gradients[0]


class Decorated(torch.autograd.Function):
    """A function whose forward has a decorator that other functions have, too."""

    @staticmethod
    @torch.no_grad()
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -gradients[0]


class Inherited(Decorated):
    """A function that has its forward from another one."""


@torch.no_grad()
def doubled(value: torch.Tensor) -> torch.Tensor:
    """Return twice a value, with the decorator that a function's forward has above."""
    return value * 2


def train(model: Any, optimizer: torch.optim.Optimizer, extra: Callable[[torch.Tensor], Any], updates: int) -> float:
    for _ in range(updates):
        scores = model(X)
        with torch.no_grad():
            # The same operation outside of the function is known by then.
            torch.add(torch.zeros(8, 2), scores)
        loss = F.cross_entropy(scores, Y) + extra(scores)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def prepared(captures: bool = True) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if captures:
        capture_model(model)
        capture_optimizer(optimizer)
    return model, optimizer


@pytest.mark.parametrize(
    "extra",
    [
        lambda scores: Reversed.apply(torch.zeros(8, 2), scores).mean(),
        lambda scores: Reversed.apply(torch.zeros(8, 2), scores * 2).mean(),
        lambda scores: Identity.apply(scores).mean(),
        lambda scores: WithoutContext.apply(scores).mean(),
        lambda scores: Inherited.apply(scores).mean(),
        lambda scores: checkpoint(lambda scores: (scores * 2).mean(), scores, use_reentrant=True),
    ],
)
def test_gradients_through_it_are_refused(extra: Callable[[torch.Tensor], Any]) -> None:
    """PyTorch runs its forward without gradients, so they would be lost without a word."""
    model, optimizer = prepared()
    with pytest.raises(CaptureError, match=r"test_frames\.py:\d+: \w+ is an .*backward of its own"):
        train(model, optimizer, extra, 1)


def test_values_without_gradients_pass() -> None:
    """As in PyTorch: no gradient flows through a function of a detached tensor, or without gradients."""

    def extra(scores: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = Reversed.apply(torch.zeros(8, 2), scores.detach())
        value = value + doubled(scores) + Decorated.forward(None, scores)
        return value.mean() + checkpoint(lambda scores: (scores * 2).mean(), scores, use_reentrant=False)

    native, captured = [train(*prepared(captures), extra, 3) for captures in (False, True)]
    assert captured == pytest.approx(native, rel=1e-5)
