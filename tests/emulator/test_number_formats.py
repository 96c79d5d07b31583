"""Types that the device does not have are narrowed where a value of them is made, when the program runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch
from tests.emulator.calls import Calls

TINY = 1e-10  # in float32, 1 + TINY is 1

WIDENED = {
    "double": lambda x: x.double(),
    "to": lambda x: x.to(torch.float64),
    "type": lambda x: x.type(torch.float64),
    "type by its name": lambda x: x.type("torch.DoubleTensor"),
    "a tensor type": lambda x: x.type(torch.DoubleTensor),
    "type_as": lambda x: x.type_as(x.double()),
    "new_ones": lambda x: x.new_ones(2, dtype=torch.float64),
    "new_full": lambda x: x.new_full((2,), 1.0, dtype=torch.double),
    "ones": lambda x: torch.ones(2, dtype=torch.float64),
    "tensor": lambda x: torch.tensor([1.0, 1.0], dtype=torch.float64),
    "mean": lambda x: x.mean(dtype=torch.float64, dim=0, keepdim=True).expand(2),
    "cdouble": lambda x: x.cdouble().real,
}


@pytest.mark.parametrize("name", WIDENED)
def test_a_double_has_the_digits_of_a_float(name):
    executor = poptorch.inferenceModel(Calls(lambda x: (WIDENED[name](x) + TINY) - WIDENED[name](x)))
    found = executor(torch.ones(2))
    assert found.dtype is torch.float32
    assert torch.equal(found, torch.zeros(2))


@pytest.mark.parametrize("widen", ["double", "type", "type_as"])
def test_a_layer_of_doubles_trains_as_one_of_floats(widen):
    layer = nn.Linear(3, 1).double()
    reference = nn.Linear(3, 1)
    reference.load_state_dict(layer.state_dict())

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wide = WIDENED[widen](x)
            return nn.functional.mse_loss(self.layer(wide), wide.sum(1, keepdim=True))

    x = torch.randn(4, 3)
    executor = poptorch.trainingModel(Model(), optimizer=poptorch.optim.SGD(layer.parameters(), lr=0.1))
    loss = executor(x)
    expected = nn.functional.mse_loss(reference(x), x.sum(1, keepdim=True))
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(layer.weight.detach().float(), (reference.weight - 0.1 * reference.weight.grad).detach())


def test_a_cast_makes_a_copy_as_in_pytorch():
    def forward(x: torch.Tensor) -> torch.Tensor:
        x.double().add_(1)
        return x + 0

    assert torch.equal(poptorch.inferenceModel(Calls(forward))(torch.ones(2)), torch.ones(2))
