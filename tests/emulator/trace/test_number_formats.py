"""Types of values in a program: those that the device has, and those that the trace saw."""

from __future__ import annotations

import contextlib
from typing import Iterator

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


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


DEFAULTS = {
    "rand": lambda x: torch.rand(2) * 0 + x,
    "ones": lambda x: torch.ones(2) + 0,
    "linspace": lambda x: torch.linspace(0, 1, 2) + x,
    "a quotient of integers": lambda x: x.int() / 3,
    "a function of integers": lambda x: (x.int() * 3).reciprocal(),
    "an integer and a number": lambda x: x.int() * 1.5,
}


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("later", [torch.float64, torch.float16])
def test_a_program_keeps_the_default_type_of_its_trace(name, later):
    x = torch.ones(2)
    executor = poptorch.inferenceModel(Calls(DEFAULTS[name]))
    executor.compile(x)
    with default_dtype(later):
        found = executor(x)
        assert torch.get_default_dtype() is later
    assert found.dtype is torch.float32
    assert torch.equal(found, DEFAULTS[name](x))


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("default", [torch.float64, torch.float16])
def test_a_trace_has_the_default_type_of_the_host_but_no_doubles(name, default):
    x = torch.ones(2)
    with default_dtype(default):
        found = poptorch.inferenceModel(Calls(DEFAULTS[name]))(x)
    with default_dtype(torch.float16 if default is torch.float16 else torch.float32):
        expected = DEFAULTS[name](x)
    assert found.dtype is expected.dtype
    assert torch.equal(found, expected)


def test_a_default_that_forward_sets_counts_from_there():
    def forward(x: torch.Tensor) -> torch.Tensor:
        before = torch.ones(2) / 3
        torch.set_default_dtype(torch.float16)
        return before + torch.linspace(0, 1, 2)

    with default_dtype(torch.float32):
        found = poptorch.inferenceModel(Calls(forward))(torch.ones(2))
    assert torch.equal(found, torch.ones(2) / 3 + torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("make", [poptorch.optim.SGD, poptorch.optim.Adam, poptorch.optim.LAMB])
def test_training_by_default_in_doubles_is_training_in_floats(make):
    """Factories in forward, the loss and the optimizer work in the one precision of the device."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.mse_loss(self.layer(x) * torch.full((1,), 0.5), torch.zeros(4, 1))

    def trained(dtype: torch.dtype) -> torch.Tensor:
        torch.manual_seed(0)
        model, x = Model(), torch.randn(4, 3)
        executor = poptorch.trainingModel(model, optimizer=make(model.parameters(), lr=0.1))
        with default_dtype(dtype):
            for _ in range(3):
                executor(x)
            weight = model.layer.weight.detach().clone()
        executor.destroy()
        return weight

    found = trained(torch.float64)
    assert found.dtype is torch.float32
    assert torch.equal(found, trained(torch.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64])
def test_a_buffer_of_a_type_that_the_device_lacks_is_refused(dtype):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.ones(2, dtype=dtype))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.table).abs().float()

    with pytest.raises(poptorch.Error, match=f"Unsupported type {dtype} of"):
        poptorch.inferenceModel(Model())(torch.ones(2))
