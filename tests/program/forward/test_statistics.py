"""Running statistics that a forward normalises with and then updates: PyTorch's gradient is one with the later ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import IPUConfig, create_ipu_trainer, ipu_prepare
from ignite_ipu.errors import LossError
from tests.supervised import task


class InBothModes(nn.Module):
    """A network that normalises in evaluation mode and by the batch, in this order or the other one."""

    def __init__(self, evaluated_first: bool, grad: bool) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.order, self.grad = (False, True) if evaluated_first else (True, False), grad

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        total = torch.zeros_like(hidden)
        for training in self.order:
            self.norm.train(training)
            with torch.set_grad_enabled(training or self.grad):
                normalised = self.norm(hidden)
            total = total + normalised
        self.norm.train(self.training)
        logits: torch.Tensor = self.last(total)
        return logits


def trained(way: str, *args: bool) -> Any:
    torch.manual_seed(0)
    model = InBothModes(*args)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(task(), batch_size=16)
    if way == "engine":
        create_ipu_trainer(model, optimizer, nn.functional.cross_entropy).run(loader)
    else:
        if way != "eager":
            ipu_prepare(optimizer, model, config=IPUConfig(update=way))
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return dict(model.state_dict())


@pytest.mark.parametrize("way", ["engine", "device", "auto", "host"])
def test_statistics_that_a_forward_updates_after_their_use(way: str) -> None:
    """They are refused, unless no gradient is computed with them."""
    with pytest.raises(LossError, match="gradient of the first normalisation with the later statistics"):
        trained(way, True, True)
    for args in ((False, True), (True, False)):
        torch.testing.assert_close(trained(way, *args), trained("eager", *args), rtol=1e-4, atol=1e-5)
