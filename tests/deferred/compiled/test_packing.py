"""Models that pack sequences are refused with a way out, which computes the same as packing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer

X = torch.randn(8, 4, 6, generator=torch.Generator().manual_seed(1))
Y = torch.arange(8) % 3
LENGTHS = torch.tensor([4, 3, 2, 1, 1, 4, 2, 3])


class Recurrent(nn.Module):
    """Classifies sequences by the last output of each."""

    def __init__(self, packs: bool) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 3, batch_first=True)
        self.packs = packs

    def forward(self, x: torch.Tensor, lengths: Any) -> torch.Tensor:
        if self.packs:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            state: torch.Tensor = self.rnn(packed)[1][0][-1]
            return state
        output: torch.Tensor = self.rnn(x)[0]
        return output[torch.arange(8, device=x.device), lengths - 1]


def trained(packs: bool, captures: bool, lengths: Any = LENGTHS) -> nn.Module:
    torch.manual_seed(0)
    model = Recurrent(packs)
    if captures:
        capture_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    capture_optimizer(optimizer)
    for _ in range(3):
        F.cross_entropy(model(X, lengths), Y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.mark.parametrize("lengths", [LENGTHS, LENGTHS.tolist()])
def test_packing_is_refused(lengths: Any) -> None:
    """In training and in evaluation."""
    with pytest.raises(CaptureError, match=r"pack_padded_sequence at .*test_packing\.py:\d+ .*Leave out the packing"):
        trained(packs=True, captures=True, lengths=lengths)
    model = Recurrent(packs=True).eval()
    capture_model(model)
    with pytest.raises(CaptureError, match=r"pack_padded_sequence at .*test_packing\.py:\d+ .*Leave out the packing"):
        model(X, lengths)


def test_without_packing_results_are_the_same() -> None:
    """The code in the message trains as packing does in PyTorch."""
    native, model = trained(packs=True, captures=False), trained(packs=False, captures=True)
    torch.testing.assert_close(model.state_dict(), native.state_dict())
    model.eval()
    torch.testing.assert_close(model(X, LENGTHS), native(X, LENGTHS))
