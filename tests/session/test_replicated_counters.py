"""Buffers into which all replicas write the same, such as counters of calls, are those of one process of several."""

from __future__ import annotations

from typing import Any, Dict, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, create_ipu_trainer, ipu_prepare
from ignite_ipu.errors import OptionsError

BATCHES = [
    (torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)), torch.tensor([0, 1, 2, 0])) for seed in range(4)
]


class Counting(nn.Module):
    """Changes buffers in the ways that `kinds` name."""

    def __init__(self, *kinds: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kinds = kinds
        self.layer = nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(3) if "norm" in kinds else nn.Identity()
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("decayed", torch.zeros(2))
        self.register_buffer("copied", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> Any:
        h = self.norm(self.layer(x))
        if "calls" in self.kinds:
            self.calls += 1
            h = h * (1 + self.calls / 10)
        if "decayed" in self.kinds:
            self.decayed.mul_(0.9).add_(1.0)
            h = h + self.decayed.sum() * x[:, :3]
        if "classes" in self.kinds:
            self.calls += h.argmax(1).sum()
        if "of a statistic" in self.kinds:  # of the call before
            assert isinstance(self.norm.running_mean, torch.Tensor)
            self.calls += (self.norm.running_mean > 0).long().sum()
        if "by a view" in self.kinds:
            self.decayed[:1].add_(x.mean())
            self.calls += (self.decayed > 0).long().sum()
        if "of the call before" in self.kinds:
            self.calls += (self.copied > 0).long().sum()
            self.copied.copy_(h.detach().mean(0))
        if "drawn" in self.kinds:
            self.calls += (torch.rand(3) > 0.5).long().sum()
        return h


def of_processes(*kinds: str) -> nn.Module:
    """Train two models on a half of each batch, with their mean gradients, and return the first."""
    models = [Counting(*kinds) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for x, y in BATCHES:
        for number, (model, optimizer) in enumerate(zip(models, optimizers)):
            optimizer.zero_grad()
            rows = slice(2 * number, 2 * number + 2)
            F.cross_entropy(model(x[rows]), y[rows]).backward()
        for pair in zip(*[model.parameters() for model in models]):
            mean = (pair[0].grad + pair[1].grad) / 2
            for parameter in pair:
                parameter.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
    return models[0]


def by_trainer(update: Any, kinds: Sequence[str]) -> Dict[str, torch.Tensor]:
    model = Counting(*kinds)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = IPUConfig(update=update, replication_factor=2)
    create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), config=config).run(BATCHES)
    return {name: each.detach().clone() for name, each in model.state_dict().items()}


@pytest.mark.parametrize("update", ["device", "host"])
@pytest.mark.parametrize("kinds", [["calls"], ["decayed"], ["calls", "decayed", "norm"]], ids=str)
def test_the_same_writes(kinds: Sequence[str], update: Any) -> None:
    found = by_trainer(update, kinds)
    for name, expected in of_processes(*kinds).state_dict().items():
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    "kinds", [["classes"], ["of a statistic", "norm"], ["by a view"], ["of the call before"], ["drawn"]], ids=str
)
def test_other_writes_of_each_replica_are_refused(kinds: Sequence[str]) -> None:
    """They depend on the batch, on random numbers, or on what another call has written so."""
    with pytest.raises(OptionsError, match=r"writes model\..*, and its 2 replicas"):
        by_trainer("device", kinds)


@pytest.mark.parametrize("update", ["device", "auto"])
def test_replicas_that_share_the_calls_of_a_loop_are_refused(update: Any) -> None:
    """The loop makes two calls for an update, and counts two; each replica would count one."""
    model = Counting("calls")
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = ipu_prepare(optimizer, model, config=IPUConfig(update=update, replication_factor=2))
    for x, y in BATCHES[:2]:
        F.cross_entropy(model(x), y).backward()
    with pytest.raises(OptionsError, match=r"writes model\.calls, and its 2 replicas"):
        optimizer.step()
