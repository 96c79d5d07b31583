"""Tied weights: whichever of its names a loss uses a weight by, it is the one that PyTorch trains."""

from __future__ import annotations

from typing import List

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import ipu_prepare


class Words(nn.Module):
    def __init__(self, reverse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.Embedding(10, 6), nn.Linear(6, 10)
        if reverse:
            self.encoder.weight = self.decoder.weight
        else:
            self.decoder.weight = self.encoder.weight
        self.register_buffer("scale", torch.full((6,), 0.5))
        self.register_buffer("same_scale", self.scale)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.encoder(ids))


def losses(reverse: bool, captures: bool) -> List[float]:
    model = Words(reverse)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if captures:
        ipu_prepare(optimizer, model)
    seen = []
    for _ in range(3):
        ids, wanted = torch.randint(10, (8,)), torch.randint(10, (8,))
        scores = F.linear(model(ids) * model.same_scale, model.decoder.weight, model.decoder.bias)
        loss = F.cross_entropy(scores, wanted) + 0.01 * model.decoder.weight.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return [*seen, model.decoder.weight.sum().item()]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_loss_uses_a_tied_weight_by_its_second_name(reverse: bool) -> None:
    assert losses(reverse, captures=True) == pytest.approx(losses(reverse, captures=False), rel=1e-5)
