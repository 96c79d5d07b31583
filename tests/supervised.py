"""A small supervised task, and the same training on Ignite's own engine to compare with."""

from __future__ import annotations

import copy
from typing import Any, Tuple

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def task(samples: int = 64, features: int = 6, classes: int = 3) -> TensorDataset:
    """Return a classification data set."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, features, generator=generator)
    return TensorDataset(x, torch.randint(0, classes, (samples,), generator=generator))


def network(features: int = 6, classes: int = 3) -> nn.Module:
    """Return an untrained network, always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(features, 8), nn.ReLU(), nn.Linear(8, classes))


def pair(lr: float = 0.05, **settings: Any) -> Tuple[nn.Module, torch.optim.Optimizer]:
    """Return a network and its optimizer."""
    model = network()
    return model, torch.optim.SGD(model.parameters(), lr=lr, **settings)


def train_natively(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    accumulation: int = 1,
    loss_fn: Any = nn.functional.cross_entropy,
) -> None:
    """Run one epoch as a plain PyTorch loop, one update for every `accumulation` micro-batches."""
    model.train()
    for number, (x, y) in enumerate(loader):
        (loss_fn(model(x), y) / accumulation).backward()
        if (number + 1) % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()


def assert_same_weights(one: nn.Module, other: nn.Module, **tolerance: float) -> None:
    """Compare all weights."""
    expected = copy.deepcopy(other.state_dict())
    for name, value in one.state_dict().items():
        torch.testing.assert_close(value, expected[name], **(tolerance or {"rtol": 1e-5, "atol": 1e-6}), msg=name)
