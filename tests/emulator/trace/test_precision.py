"""Number formats: how half and float mix, floating-point exceptions."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch
from tests.emulator.calls import Calls
from tests.half_precision import needs_half_precision

HALF, FLOAT = torch.float16, torch.float32


def run(model: Any, *inputs: torch.Tensor, options: Optional[poptorch.Options] = None) -> Any:
    executor = poptorch.inferenceModel(model if isinstance(model, nn.Module) else Calls(model), options)
    try:
        return executor(*inputs)
    finally:
        executor.destroy()


# -- half and float -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", [torch.add, torch.mul, torch.sub, torch.div, torch.maximum, torch.pow])
@pytest.mark.parametrize("types", [(HALF, FLOAT), (FLOAT, HALF), (HALF, HALF), (FLOAT, FLOAT)])
def test_elementwise_operators_promote(operator, types):
    """As in torch."""
    a, b = torch.rand(3).add(1).to(types[0]), torch.rand(3).add(1).to(types[1])
    found = run(operator, a, b)
    assert found.dtype is torch.promote_types(*types)
    assert torch.equal(found, operator(a, b))


LAYERS = [
    (nn.Linear(4, 2), torch.randn(3, 4)),
    (nn.Conv1d(2, 3, 2), torch.randn(1, 2, 5)),
    (nn.Conv2d(2, 3, 2), torch.randn(1, 2, 5, 5)),
    (nn.ConvTranspose2d(2, 3, 2), torch.randn(1, 2, 3, 3)),
]


@pytest.mark.parametrize(("layer", "x"), LAYERS)
@pytest.mark.parametrize("activation", [pytest.param(HALF, marks=needs_half_precision), FLOAT])
@pytest.mark.parametrize("weight", [HALF, FLOAT])
def test_layers_follow_the_activation(layer, x, activation, weight):
    """The weight is cast to the input's type, which is the result's too."""
    with torch.no_grad():
        expected = layer(x)
    mixed = type(layer).__new__(type(layer))
    mixed.__dict__.update(layer.__dict__)
    mixed._parameters = {name: nn.Parameter(p.detach().to(weight)) for name, p in layer._parameters.items()}
    found = run(mixed, x.to(activation))
    assert found.dtype is activation
    assert torch.allclose(found.float(), expected, atol=2e-2)


def test_casts_are_ordinary_casts():
    one, two, three = run(lambda x: (x.half(), x.half().float(), x.to(HALF) + x), torch.tensor([1 / 3]))
    assert one.dtype is HALF and three.dtype is FLOAT
    assert two.item() == np.float32(np.float16(np.float32(1 / 3)))


@needs_half_precision
def test_a_half_model_keeps_half_statistics_unless_cast():
    """`model.half()` takes the running statistics along; casting them back before wrapping keeps them float."""
    net = nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3)).half()
    assert run(net.eval(), torch.randn(2, 2, 5).half()).dtype is HALF
    assert net[1].running_mean.dtype is HALF
    net[1].running_mean, net[1].running_var = net[1].running_mean.float(), net[1].running_var.float()
    assert run(net.eval(), torch.randn(2, 2, 5).half()).dtype is HALF
    assert net[1].running_var.dtype is FLOAT


@pytest.mark.parametrize("types", [(HALF, HALF, FLOAT), (HALF, FLOAT, HALF), (FLOAT, HALF, HALF), (FLOAT, HALF, FLOAT)])
def test_batch_norm_takes_any_mixture(types):
    """The result has the input's type; statistics keep theirs and are updated."""
    activation, weight, statistics = types

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2).to(weight)
            self.norm.running_mean = self.norm.running_mean.to(statistics)
            self.norm.running_var = self.norm.running_var.to(statistics)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.norm(x)
            return y, poptorch.identity_loss(y.float().square(), "sum")

    x = torch.randn(6, 2)
    reference = nn.BatchNorm1d(2)
    expected = reference(x)
    net = Net()
    executor = poptorch.trainingModel(net, optimizer=poptorch.optim.SGD(net.parameters(), lr=0.0625))
    found, _ = executor(x.to(activation))
    assert found.dtype is activation and torch.allclose(found.float(), expected, atol=1e-2)
    assert net.norm.running_mean.dtype is statistics
    assert torch.allclose(net.norm.running_mean.float(), reference.running_mean, atol=1e-3)
    executor.destroy()


@pytest.mark.parametrize("norm", [nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True)])
def test_other_norms_take_mixtures_too(norm):
    x = torch.randn(2, 4, 4)
    with torch.no_grad():
        expected = norm(x)
    for module, activation in ((norm.half(), FLOAT), (norm.float(), HALF)):
        found = run(module, x.to(activation))
        assert found.dtype is activation and torch.allclose(found.float(), expected, atol=1e-2)


def test_group_norm_may_take_every_so_manieth_channel():
    """With the back end's option group g of G has the channels g, g + G, ...; by default neighbours, as in PyTorch."""
    norm, x = nn.GroupNorm(3, 6), torch.randn(2, 6, 5) * torch.arange(1.0, 7)[:, None]
    norm.weight.data, norm.bias.data = torch.rand(6), torch.rand(6)
    options = poptorch.Options()
    options._Popart.set("groupNormStridedChannelGrouping", True)
    groups = [x[:, group::3] for group in range(3)]
    expected = torch.empty_like(x)
    for group, members in enumerate(groups):
        mean, variance = members.mean((1, 2), keepdim=True), members.var((1, 2), unbiased=False, keepdim=True)
        expected[:, group::3] = (members - mean) / (variance + norm.eps).sqrt()
    expected = expected * norm.weight.detach()[:, None] + norm.bias.detach()[:, None]
    executor = poptorch.inferenceModel(norm, options)
    torch.testing.assert_close(executor(x), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(run(norm, x), norm(x).detach())


# -- floating-point exceptions ------------------------------------------------------------------------------------


def exceptions() -> poptorch.Options:
    options = poptorch.Options()
    options.Precision.enableFloatingPointExceptions(True)
    return options


ZERO, ONE = torch.tensor([0.0]), torch.tensor([1.0])
INF, NAN = torch.tensor([float("inf")]), torch.tensor([float("nan")])

RAISES = {
    "division by zero": (torch.div, ONE, ZERO),
    "0/0": (torch.div, ZERO, ZERO),
    "inf-inf": (torch.sub, INF, INF),
    "0*inf": (torch.mul, ZERO, INF),
    "overflow": (lambda x, y: torch.exp(x * y), ONE * 1000, ONE),
    "overflow of half": (lambda x, y: (x * y).half(), ONE * 1e5, ONE),
    "square root of a negative number": (lambda x, y: torch.sqrt(-x), ONE, ONE),
    "logarithm of zero": (lambda x, y: torch.log(x), ZERO, ONE),
    "comparing NaN": (lambda x, y: (x > y).float(), NAN, ONE),
    "sum of infinities": (lambda x, y: torch.cat([x, y]).sum(), INF, -INF),
    "in place": (lambda x, y: (x * 1).div_(y), ONE, ZERO),
    "in a loop": (lambda x, y: poptorch.for_loop(2, lambda a: a / y, [x])[0], ONE, ZERO),
}


@pytest.mark.parametrize("name", RAISES)
def test_exceptions_stop_the_run(name):
    """And only when they are switched on."""
    function, *inputs = RAISES[name]
    run(function, *inputs)
    with pytest.raises(poptorch.Error, match="Floating point exception"):
        run(function, *inputs, options=exceptions())


PASSES = {
    "ordinary arithmetic": (lambda x, y: (x + y).exp().log() / (y + 2), ONE, ONE),
    "infinities that were put there": (
        lambda x, y: torch.softmax(torch.cat([x, y]).masked_fill(torch.cat([x, y]) > 1, float("-inf")), 0),
        ONE,
        ONE * 5,
    ),
    "NaN that comes in and goes out": (lambda x, y: x + y, NAN, ONE),
    "testing for NaN": (lambda x, y: torch.isnan(x).float(), NAN, ONE),
    "infinity plus a number": (lambda x, y: x + y, INF, ONE),
}


@pytest.mark.parametrize("name", PASSES)
def test_what_raises_no_exception(name):
    function, *inputs = PASSES[name]
    assert torch.equal(run(function, *inputs, options=exceptions()).nan_to_num(), function(*inputs).nan_to_num())


class Root(nn.Module):
    """Its forward is finite at zero, its gradient is not."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([start]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(torch.sqrt(self.weight) * x, "sum")


def test_the_backward_pass_and_the_update_raise_too():
    for start, lr in ((0.0, 0.1), (1.0, 3e38)):
        net = Root(start)
        executor = poptorch.trainingModel(net, exceptions(), poptorch.optim.SGD(net.parameters(), lr=lr))
        with pytest.raises(poptorch.Error, match="Floating point exception"):
            executor(torch.tensor([4.0]))


def test_training_without_exceptions_runs_to_the_end():
    net = Root(1.0)
    executor = poptorch.trainingModel(net, exceptions(), poptorch.optim.SGD(net.parameters(), lr=0.1))
    executor(torch.tensor([4.0]))
    assert net.weight.item() == pytest.approx(1 - 0.1 * 4 / 2)
    executor.destroy()
