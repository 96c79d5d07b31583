"""Functions of PyTorch that call a function of the user's: what that does is part of the trace."""

from __future__ import annotations

import copy
from typing import Any, List

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ignite_ipu.emulator as poptorch
from tests.emulator.calls import Calls


class Distance(nn.Module):
    """A triplet loss in the space that a layer maps to."""

    def __init__(self, as_module: bool, swap: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.calls: List[int] = []
        self.scale = 2.0
        self.swap = swap
        self.loss = nn.TripletMarginWithDistanceLoss(distance_function=self.distance, swap=swap) if as_module else None

    def distance(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.calls.append(1)
        return self.scale * (self.layer(x) - self.layer(y)).abs().sum(1)

    def forward(self, anchor: torch.Tensor, positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
        compute: Any = self.loss
        if compute is not None:
            return poptorch.identity_loss(compute(anchor, positive, negative), "sum")
        loss = F.triplet_margin_with_distance_loss(
            anchor, positive, negative, distance_function=self.distance, swap=self.swap, margin=5.0
        )
        return poptorch.identity_loss(loss, "sum")


@pytest.mark.parametrize("as_module", [False, True])
@pytest.mark.parametrize("swap", [False, True])
def test_a_distance_is_traced_once_and_uses_the_models_layers(as_module, swap):
    torch.manual_seed(0)
    model = Distance(as_module, swap)
    reference = copy.deepcopy(model)
    if as_module:
        reference.loss = nn.TripletMarginWithDistanceLoss(distance_function=reference.distance, swap=swap)
    triplet = [torch.randn(4, 3) for _ in range(3)]
    executor = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(3):
        loss = executor(*triplet)
        optimizer.zero_grad()
        expected = reference(*triplet)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss, expected.detach())
        model.scale = 100.0  # frozen in the program
    assert len(model.calls) == (3 if swap else 2)
    torch.testing.assert_close(model.layer.weight.detach(), reference.layer.weight.detach())


def test_a_distance_of_pytorchs_own_is_an_operator():
    loss = nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance())
    triplet = [torch.randn(4, 3) for _ in range(3)]
    torch.testing.assert_close(poptorch.inferenceModel(Calls(loss))(*triplet), loss(*triplet))


@pytest.mark.parametrize(
    "forward", [lambda x: x.clone().apply_(abs), lambda x: x.clone().map_(x, max)], ids=["apply_", "map_"]
)
def test_functions_of_single_values_have_no_values_to_work_on(forward):
    with pytest.raises(poptorch.Error, match="only supported in eager mode"):
        poptorch.inferenceModel(Calls(forward))(torch.ones(2))
