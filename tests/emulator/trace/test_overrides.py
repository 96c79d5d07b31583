"""Functions of PyTorch that are traced by their calls: of layers, and of functions that they are given."""

from __future__ import annotations

import copy
from typing import Any, List

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ignite_ipu.emulator as poptorch
from tests.emulator.calls import Calls
from tests.half_precision import needs_half_precision


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


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("own_sizes", [False, True])
@pytest.mark.parametrize("half", ["weights", pytest.param("input", marks=needs_half_precision)])
def test_the_layers_of_attention_follow_their_activation(half, own_sizes, batch_first):
    """A linear layer with mixed types computes in the type of its input, and those of attention are no others."""
    torch.manual_seed(0)
    sizes = {"kdim": 6, "vdim": 4} if own_sizes else {}
    attention = nn.MultiheadAttention(8, 2, batch_first=batch_first, **sizes)
    x = [torch.randn(4, 5, size) for size in (8, sizes.get("kdim", 8), sizes.get("vdim", 8))]
    if half == "weights":
        attention.half()
    else:
        x = [each.half() for each in x]
    reference = copy.deepcopy(attention).half().float()
    expected, expected_weights = reference(*(each.float() for each in x))
    out, weights = poptorch.inferenceModel(Calls(attention))(*x)
    assert out.dtype is weights.dtype is x[0].dtype
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if half == "input" else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(out.float(), expected.detach(), **tolerance)
    torch.testing.assert_close(weights.float(), expected_weights.detach(), **tolerance)


def test_attention_with_half_weights_trains_on_floats():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.mse_loss(self.attention(x, x, x)[0], x)

    torch.manual_seed(0)
    model, x = Model().half(), torch.randn(4, 5, 8)
    reference = copy.deepcopy(model).float()
    executor = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=1.0))
    loss = executor(x)
    expected = reference(x)
    expected.backward()
    assert loss.dtype is torch.float32
    torch.testing.assert_close(loss, expected.detach())
    for name, weight in reference.attention.named_parameters():
        found = model.attention.get_parameter(name).detach()
        assert found.dtype is torch.float16
        torch.testing.assert_close(found.float(), (weight - weight.grad).detach(), rtol=1e-3, atol=1e-3)
