"""A model whose forward puts other tensors in the place of its buffers is refused, and left as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

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
    """Assigns a buffer that it should write."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean()
        scores: torch.Tensor = self.linear(x) - self.mean
        return scores


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
        with pytest.raises(CaptureError, match=r"Growing, called at .*test_replaced.*buffer table\. .*longest input"):
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


def test_a_buffer_that_is_assigned() -> None:
    """It is named where the model is called, in the first call."""
    model = Averaging()
    prepared(model)
    with pytest.raises(CaptureError, match=r"place of the buffer mean\. .*copy_\(\)"):
        model(torch.ones(2, 6))
