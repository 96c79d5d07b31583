"""Half precision: operators compute in float32 and round once, with every version of PyTorch."""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ignite_ipu.emulator as poptorch
from tests.emulator.calls import Calls

HALF, FLOAT = torch.float16, torch.float32
Function = Callable[..., torch.Tensor]


def values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).half()


# Functions of half tensors, each of one operator. PyTorch 2.0 has no CPU kernel for most of them.
OPERATORS: List[Tuple[Function, Tuple[torch.Tensor, ...]]] = [
    (F.linear, (values(3, 40), values(5, 40), values(5))),
    (torch.matmul, (values(2, 3, 40), values(2, 40, 4))),
    (torch.bmm, (values(2, 3, 40), values(2, 40, 4))),
    (torch.addmm, (values(4), values(3, 40), values(40, 4))),
    (lambda a, b: torch.einsum("bi,bj->ij", a, b), (values(40, 3), values(40, 2))),
    (F.conv1d, (values(2, 3, 9), values(4, 3, 3), values(4))),
    (F.conv2d, (values(2, 3, 8, 8), values(4, 3, 3, 3), values(4))),
    (F.conv_transpose2d, (values(2, 3, 4, 4), values(3, 4, 3, 3))),
    (lambda x: F.layer_norm(x, (40,)), (values(3, 40),)),
    (lambda x: F.group_norm(x, 2), (values(3, 4, 5),)),
    (lambda x: F.batch_norm(x, None, None, training=True), (values(8, 4),)),
    (lambda x: F.softmax(x, -1), (values(3, 40),)),
    (lambda x: F.log_softmax(x, -1), (values(3, 40),)),
    (lambda x: F.gelu(x, approximate="tanh"), (values(40),)),
    (F.silu, (values(40),)),
    (torch.relu, (values(40),)),
    (torch.tanh, (values(40),)),
    (torch.sigmoid, (values(40),)),
    (torch.exp, (values(40),)),
    (torch.sqrt, (values(40).abs(),)),
    (lambda x: x.pow(3), (values(40),)),
    (lambda x: x.cumsum(0), (values(40),)),
    (lambda x: x.sum(1), (values(3, 400),)),
    (lambda x: x.mean(1), (values(3, 400),)),
    (lambda x: torch.clamp(x, -0.5, 0.5), (values(40),)),
    (lambda x: F.max_pool2d(x, 2), (values(1, 2, 4, 4),)),
    (lambda x: F.avg_pool2d(x, 2), (values(1, 2, 4, 4),)),
    (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), (values(1, 2, 4, 4),)),
    (lambda x: F.interpolate(x, size=(8, 8), mode="bilinear"), (values(1, 2, 4, 4),)),
    (lambda a, b: a * b, (values(40), values(40))),
    (lambda a, b: a + b, (values(40), values(40))),
    (lambda a, b: torch.mul(a, b), (values(40), torch.randn(40))),
    (lambda x: torch.topk(x, 3).values, (values(40),)),
]


def expected(function: Function, inputs: Tuple[torch.Tensor, ...], weights: torch.Tensor) -> List[torch.Tensor]:
    """Results and gradients by plain PyTorch in float32, rounded where a half tensor is written."""
    wide = [x.float().requires_grad_() for x in inputs]
    result = function(*wide)
    kind = HALF if all(x.dtype is HALF for x in inputs) else FLOAT
    gradients = torch.autograd.grad(result, wide, weights.to(kind).float())
    return [result.detach().to(kind), *(gradient.to(x.dtype) for gradient, x in zip(gradients, inputs))]


class Differentiated(nn.Module):
    """The function of parameters, and as a loss its sum with weights, which are the gradient of its result."""

    def __init__(self, function: Function, inputs: Tuple[torch.Tensor, ...], weights: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        self.inputs = nn.ParameterList([nn.Parameter(x.clone()) for x in inputs])
        self.register_buffer("weights", weights)

    def forward(self) -> Any:
        result = self.function(*self.inputs)
        return result, poptorch.identity_loss((result.float() * self.weights).sum(), "sum")


@pytest.mark.parametrize("place", range(len(OPERATORS)))
def test_results_and_gradients_are_those_of_float32_rounded_once(place):
    """Bit by bit; the gradient is anchored, since it is the raw one that a backward pass leaves."""
    function, inputs = OPERATORS[place]
    torch.manual_seed(place)
    shape = function(*[x.float() for x in inputs]).shape
    weights = torch.randn(shape).half().float()
    wanted = expected(function, inputs, weights)
    model = Differentiated(function, inputs, weights)
    options = poptorch.Options().showCompilationProgressBar(False)
    for number in range(len(inputs)):
        options.anchorTensor(f"g{number}", f"Gradient___inputs.{number}")
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    result, _ = executor()
    found = [result, *(executor.getAnchoredTensor(f"g{number}") for number in range(len(inputs)))]
    for ours, theirs in zip(found, wanted):
        assert ours.dtype is theirs.dtype
        assert torch.equal(ours, theirs)


def test_layers_round_between_them_and_not_within():
    """Two layers and an activation: each result is a half tensor, as on an IPU."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 4)).half()
    x = values(8, 64)
    first, _, second = model
    hidden = F.linear(x.float(), first.weight.float(), first.bias.float()).half()
    active = torch.tanh(hidden.float()).half()
    wanted = F.linear(active.float(), second.weight.float(), second.bias.float()).half()
    assert torch.equal(poptorch.inferenceModel(model)(x), wanted)


def test_writes_in_place_are_rounded_and_seen_through_views():
    def written(x):
        y = x * 1
        y.tanh_()
        y[0].mul_(3.0).exp_()
        F.relu_(y[1])
        return y

    x = values(3, 4)
    y = torch.tanh(x.float()).half()
    y[0] = torch.exp((y[0].float() * 3).half().float()).half()
    y[1] = y[1].float().relu().half()
    found = poptorch.inferenceModel(Calls(written))(x)
    assert found.dtype is HALF and torch.equal(found, y)


def test_buffers_in_half_precision_are_updated():
    """Running statistics: computed in float32 and stored in half."""
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Flatten()).half()
    reference = nn.BatchNorm1d(4)
    x = values(16, 4)
    reference(x.float())

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def forward(self, x):
            return poptorch.identity_loss(self.layers(x).float().sum(), "sum")

    executor = poptorch.trainingModel(Net(), None, torch.optim.SGD(model.parameters(), lr=0.0))
    executor(x)
    assert model[0].running_mean.dtype is HALF
    assert torch.equal(torch.as_tensor(model[0].running_mean), reference.running_mean.half())


def test_constants_are_computed_alike():
    """Operations on constants alone are folded while compiling."""

    class Scaled(nn.Module):
        def forward(self, x):
            table = torch.arange(8, device=x.device).half()
            return x * torch.softmax(torch.sin(table), 0)

    table = torch.softmax(torch.sin(torch.arange(8.0)).half().float(), 0).half()
    found = poptorch.inferenceModel(Scaled())(torch.ones(8).half())
    assert torch.equal(found, table)


def test_half_precision_trains_with_accumulation_and_loss_scaling():
    """As plain PyTorch does with half weights whose gradients are kept in float32."""
    torch.manual_seed(3)
    model = nn.Linear(16, 2).half()
    weight, bias = (each.detach().clone().float().requires_grad_() for each in model.parameters())
    x, y = values(8, 16), torch.randint(0, 2, (8,))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = model

        def forward(self, x, y):
            return F.cross_entropy(self.layer(x).float(), y)

    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01, loss_scaling=128.0, accum_type=FLOAT)
    poptorch.trainingModel(Net(), options, optimizer)(x, y)
    loss = F.cross_entropy(F.linear(x.float(), weight, bias), y)
    loss.backward()
    plain = torch.optim.AdamW([weight, bias], lr=0.01)
    plain.step()
    for ours, theirs in zip(model.parameters(), (weight, bias)):
        assert torch.as_tensor(ours).dtype is HALF
        assert torch.allclose(torch.as_tensor(ours).float(), theirs, atol=2e-3)


def test_dropout_draws_its_mask():
    found = poptorch.inferenceModel(Calls(lambda x: F.dropout(x, 0.5, training=True)))(torch.ones(1000).half())
    assert found.dtype is HALF and set(found.tolist()) == {0.0, 2.0}
    assert 400 < int((found == 0).sum()) < 600
