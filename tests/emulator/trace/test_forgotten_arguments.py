"""Arguments that PyTorch keeps from a trace reach the program."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ignite_ipu.emulator as poptorch
from tests.emulator.calls import Calls

weighs_l1 = pytest.mark.skipif(
    "weight" not in inspect.signature(F.l1_loss).parameters, reason="this PyTorch's l1_loss has no weight"
)


@weighs_l1
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_l1_loss_is_weighted(reduction):
    torch.manual_seed(0)
    x, target, weight = torch.randn(4, 3), torch.randn(4, 3), torch.rand(4, 3)
    executor = poptorch.inferenceModel(Calls(lambda *t: F.l1_loss(t[0], t[1], reduction=reduction, weight=t[2])))
    errors = (x - target).abs() * weight
    expected = {"mean": errors.sum() / weight.sum(), "sum": errors.sum(), "none": errors}[reduction]
    torch.testing.assert_close(executor(x, target, weight), expected)


@weighs_l1
def test_a_weighted_l1_loss_trains():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return F.l1_loss(self.layer(x), x, weight=weight)

    torch.manual_seed(0)
    model, x, weight = Model(), torch.randn(4, 3), torch.rand(4, 3)
    reference = copy.deepcopy(model)
    executor = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))
    executor(x, weight)
    reference(x, weight).backward()
    expected = reference.layer.weight - 0.1 * reference.layer.weight.grad
    torch.testing.assert_close(model.layer.weight.detach(), expected.detach())


def test_what_is_given_is_not_looked_for_again():
    """Arguments that PyTorch does hand on count as they are."""
    x, target = torch.randn(4, 3), torch.randn(4, 3)
    executor = poptorch.inferenceModel(Calls(lambda x, y: F.smooth_l1_loss(x, y, reduction="sum", beta=0.25)))
    torch.testing.assert_close(executor(x, target), F.smooth_l1_loss(x, target, reduction="sum", beta=0.25))
