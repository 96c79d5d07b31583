"""The row of an embedding's padding index is not trained, as in eager PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ignite_ipu import create_ipu_trainer


@pytest.mark.parametrize("padding_idx", [0, -1])
def test_the_padding_row_is_not_trained(padding_idx):
    """Also when it was set to something, and with an optimizer that would move it by its moments."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 3, padding_idx=padding_idx), nn.Flatten(), nn.Linear(12, 2))
    with torch.no_grad():
        model[0].weight[padding_idx] = 0.5
    native = copy.deepcopy(model)
    data = [(torch.randint(6, (8, 4)), torch.randint(2, (8,))) for _ in range(4)]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    create_ipu_trainer(model, optimizer, nn.functional.cross_entropy).run(data)
    optimizer = torch.optim.Adam(native.parameters(), lr=0.05)
    for x, y in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(native(x), y).backward()
        optimizer.step()
    assert native[0].weight[padding_idx].tolist() == [0.5] * 3
    torch.testing.assert_close(model.state_dict(), native.state_dict(), rtol=1e-4, atol=1e-5)
