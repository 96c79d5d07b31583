"""Losses that the host computes anew have the gradients of PyTorch, of those parameters alone that are asked for."""

from __future__ import annotations

from typing import Any, List

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare

X = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


class Tied(nn.Module):
    """A layer that is called twice, and one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.unused = nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(2, 2)
        self.again = self.first

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.again(torch.tanh(self.first(x))))


@pytest.mark.parametrize("update", ["auto", "host"])
@pytest.mark.parametrize("names", [["unused.weight"], ["first.weight", "unused.bias"], ["last.bias"]])
def test_backward_to_some_parameters_after_a_write(names: List[str], update: str) -> None:
    """A loss may depend on none of these, and PyTorch gives them no gradient then."""
    seen = []
    for captures in (False, True):
        model = Tied()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captures:
            ipu_prepare(model, optimizer, config=IPUConfig(update=update))
        found: List[Any] = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(X), Y)
            for parameter in model.parameters():
                parameter.data.add_(0.01)
            loss.backward(inputs=[model.get_parameter(name) for name in names])  # type: ignore[no-untyped-call]
            found += [None if each.grad is None else each.grad.tolist() for each in model.parameters()]
            optimizer.step()
            found += [loss.item(), *[each.tolist() for each in model.state_dict().values()]]
        seen.append(found)
    eager, captured = seen
    assert [each is None for each in captured] == [each is None for each in eager]
    for mine, theirs in zip(captured, eager):
        if theirs is not None:
            torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs))
