"""Weights with memory in common train as in eager PyTorch, by updates on the host, or are refused."""

from __future__ import annotations

from typing import Any, Callable, List

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.errors import OptimizerError, SessionError

X = torch.randint(10, (4, 8), generator=torch.Generator().manual_seed(1))


class Tied(nn.Module):
    """Has two parameters in one memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(10, 6), nn.Linear(6, 10, bias=False)
        self.head.weight.data = self.embedding.weight.data

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(torch.tanh(self.embedding(x)))


class Anchored(nn.Module):
    """Has a buffer that was to be a copy of a weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(10, 6), nn.Linear(6, 10)
        self.register_buffer("start", self.head.weight.data)

    def forward(self, x: torch.Tensor) -> Any:
        scores = self.embedding(x)
        return self.head(scores) + F.linear(scores, self.start)


def train(model: nn.Module, optimizer: Any) -> List[float]:
    losses = []
    for x in X:
        loss = F.cross_entropy(model(x), x)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("make", [Tied, Anchored])
def test_each_update_is_seen_by_all_tensors_in_the_memory(make: Callable[[], nn.Module]) -> None:
    found = []
    for captures in (False, True):
        model = make()
        optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.1)
        optimizer = ipu_prepare(optimizer, model, config=IPUConfig(update="auto")) if captures else optimizer
        found.append((train(model, optimizer), model.state_dict()))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_updates_on_the_device_are_refused() -> None:
    model = Tied()
    optimizer = ipu_prepare(torch.optim.Adam(model.parameters()), model)
    with pytest.raises(OptimizerError, match=r"head\.weight has memory in common with embedding\.weight"):
        train(model, optimizer)


def update_once(model: nn.Module, optimizer: Any) -> None:
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("update", ["device", "host"])
def test_memory_of_another_model_is_refused(update: Any) -> None:
    model, teacher = nn.Linear(3, 2), nn.Linear(3, 2)
    for own, other in zip(model.parameters(), teacher.parameters()):
        other.data, other.requires_grad = own.data, False
    config = IPUConfig(update=update)
    optimizer = ipu_prepare(torch.optim.Adam(model.parameters()), model, teacher, config=config)
    with torch.no_grad(), pytest.raises(SessionError, match="memory in common"):
        teacher(torch.ones(2, 3))
    with pytest.raises(SessionError, match="memory in common"):
        update_once(model, optimizer)
