"""Stochastic rounding: the values that are rounded, to which neighbours, how often, and the average."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.compiler.stochastic_rounding import round_stochastically
from tests.emulator.calls import Calls

HALF, FLOAT = torch.float16, torch.float32


@given(st.floats(-70000, 70000, width=32))
def test_a_value_becomes_one_of_its_two_neighbours(value):
    """A value that float16 holds becomes itself."""
    found = round_stochastically(torch.full((20,), value)).float().numpy()
    with np.errstate(over="ignore"):
        nearest = np.float16(value)
    if np.isinf(nearest) or nearest == np.float32(value):
        assert (found == nearest).all()
        return
    other = np.nextafter(nearest, np.float16(np.inf if float(nearest) < value else -np.inf))
    assert set(found.tolist()) <= {float(nearest), float(other)}


@pytest.mark.parametrize("value", [1 / 3, -2.00037, 1e-7, -3e-8, 1023.9, 6e4 + 3])
def test_the_expected_result_is_the_value(value):
    """The mean of many roundings lies within five standard errors; rounding to nearest would miss it."""
    count = 20_000
    found = round_stochastically(torch.full((count,), value)).double()
    error = found.std().item() / count**0.5
    assert error > 0
    assert abs(found.mean().item() - float(np.float32(value))) < 5 * error


def test_special_values_pass():
    values = torch.tensor([float("inf"), float("-inf"), 0.0, -0.0, 65504.0, 1e6])
    assert torch.equal(round_stochastically(values), values.half())
    assert round_stochastically(torch.tensor([float("nan")])).isnan().all()


class Drifts(nn.Module):
    """Half weights at 1 with a gradient of 1: each update is far smaller than their spacing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2000).half())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss((self.weight * x).sum(), "sum")


def drift(stochastic: bool, seed: int = 0) -> torch.Tensor:
    net = Drifts()
    options = poptorch.Options().randomSeed(seed)
    options.Precision.enableStochasticRounding(stochastic)
    executor = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=1e-5))
    for _ in range(50):
        executor(torch.ones(1).half())
    executor.destroy()
    return net.weight.detach().float()


def test_small_updates_survive_on_average():
    """Fifty updates of 1e-5 move weights by 5e-4 on average, none without stochastic rounding."""
    assert drift(stochastic=False).eq(1).all()
    weights = drift(stochastic=True)
    error = weights.std().item() / len(weights) ** 0.5
    assert abs(weights.mean().item() - (1 - 50e-5)) < 5 * error < 50e-5


def test_rounding_is_seeded():
    assert torch.equal(drift(True, seed=1), drift(True, seed=1))
    assert not torch.equal(drift(True, seed=1), drift(True, seed=2))


# -- results of a program --------------------------------------------------------------------------------------


def stochastic(seed: int = 0) -> poptorch.Options:
    options = poptorch.Options().randomSeed(seed)
    options.Precision.enableStochasticRounding(True)
    return options


def run(function: Callable[..., Any], *inputs: torch.Tensor, options: Optional[poptorch.Options] = None) -> Any:
    executor = poptorch.inferenceModel(Calls(function), stochastic() if options is None else options)
    try:
        return executor(*inputs)
    finally:
        executor.destroy()


def operands() -> Tuple[torch.Tensor, torch.Tensor]:
    x, y = (torch.rand(4, 4, generator=torch.Generator().manual_seed(seed)).add(0.5).half() for seed in (1, 2))
    return x, y


def check_rounded(found: torch.Tensor, exact: torch.Tensor) -> None:
    """Check that `found[i]` are the two halves next to `exact`, the nearer one more often: by 5.5 standard errors."""
    nearest = exact.numpy().astype(np.float16)
    below = torch.from_numpy(np.where(nearest > exact.numpy(), np.nextafter(nearest, np.float16(-np.inf)), nearest))
    above = torch.from_numpy(np.where(nearest < exact.numpy(), np.nextafter(nearest, np.float16(np.inf)), nearest))
    assert found.dtype is HALF and found.shape[1:] == exact.shape
    assert bool(((found == below) | (found == above)).all())
    inexact = above != below
    assert bool(inexact.any())
    chance = (exact.double() - below.double()) / (above.double() - below.double())
    often = (found == above).double().mean(0)
    assert bool(((often - chance).abs() < 5.5 * (0.25 / len(found)) ** 0.5)[inexact].all())


def filled(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y[:, 1:] = value[:, 1:]
    return y


def scaled_column(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[1:, 2].mul_(y[1:, 2])
    return x


def third(x: torch.Tensor) -> torch.Tensor:
    return x.float() / 3


# The program in half, and the same in float32 where plain PyTorch would have other types.
OPERATORS: Dict[str, Tuple[Callable[..., Any], Optional[Callable[..., Any]]]] = {
    "to(half)": (lambda x, y: third(x).to(HALF), lambda x, y: third(x)),
    "half()": (lambda x, y: third(x).half(), lambda x, y: third(x)),
    "type_as": (lambda x, y: third(x).type_as(y), lambda x, y: third(x)),
    "copy_": (lambda x, y: torch.zeros_like(x).copy_(third(x)), lambda x, y: third(x)),
    "assignment": (lambda x, y: filled(x, third(x)), None),
    "add": (torch.add, None),
    "times a number": (lambda x, y: x * 0.1, None),
    "in place": (lambda x, y: x.clone().mul_(y), None),
    "in place on a view": (scaled_column, None),
    "sum": (lambda x, y: x.sum(1), None),
    "matmul": (lambda x, y: x @ y.t(), None),
    "linear": (lambda x, y: F.linear(x, y, y[:, 0]), None),
    "linear with float weights": (lambda x, y: F.linear(x, y.float()), lambda x, y: F.linear(x, y)),
    "softmax of float": (lambda x, y: torch.softmax(x.float(), 1, HALF), lambda x, y: torch.softmax(x, 1)),
    "two results": (lambda x, y: torch.var_mean(x, 1)[0], None),
    "loss": (F.mse_loss, None),
    "identity_loss": (lambda x, y: poptorch.identity_loss(x, "mean"), lambda x, y: x.mean()),
    "for_loop": (lambda x, y: poptorch.for_loop(1, lambda a: a / 3, [x])[0], None),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_results_in_half_are_rounded_at_random(name):
    """An exact float32 value comes out as one of its neighbours; on average as itself."""
    function, reference = OPERATORS[name]
    x, y = operands()
    exact = (function if reference is None else reference)(x.float(), y.float())
    repeats = 1000
    options = stochastic().deviceIterations(repeats)
    found = run(lambda a, b: function(a, b).unsqueeze(0), x.repeat(repeats, 1), y.repeat(repeats, 1), options=options)
    check_rounded(found, exact)


MOVES = {
    "views": lambda x, y: x.t().reshape(2, 8)[:, 1::2],
    "cat": lambda x, y: torch.cat([x, y]),
    "where": lambda x, y: torch.where(x > y, x, y),
    "masked_fill": lambda x, y: x.masked_fill(x > y, 0.1),
    "maximum": torch.maximum,
    "gather": lambda x, y: x[:, torch.tensor([3, 3, 1]).to(x.device)],
    "to float and back": lambda x, y: x.float().half(),
    "a constant": lambda x, y: x * 0 + torch.full_like(x, 0.1),
    "exact arithmetic": lambda x, y: x * 0.5,
}


@pytest.mark.parametrize("name", MOVES)
def test_what_float16_holds_is_kept(name):
    """Moving values, and results that are exact, leave nothing to chance."""
    x, y = operands()
    assert torch.equal(run(MOVES[name], x, y), MOVES[name](x, y))


def test_views_stay_views():
    """An operator in place on a view changes its base."""

    def doubled(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.view(16)[3:5].mul_(2.0)
        return y

    x, _ = operands()
    assert torch.equal(run(doubled, x), doubled(x))


def test_float32_is_untouched():
    x, y = (each.float() / 3 for each in operands())
    found = run(lambda a, b: (a @ b).softmax(0), x, y)
    assert torch.equal(found, run(lambda a, b: (a @ b).softmax(0), x, y, options=poptorch.Options()))


def test_overflow_gives_infinity():
    """As rounding to nearest does."""
    x = torch.tensor([6e4, -6e4, 100.0]).half()
    assert torch.equal(run(lambda a: a * 2, x), x * 2)


def test_inference_follows_the_seed():
    x, y = operands()
    once, again, other = (run(torch.div, x, y, options=stochastic(seed)) for seed in (1, 1, 2))
    assert torch.equal(once, again) and not torch.equal(once, other)


def test_operators_in_float32_are_not_wrapped():
    """The program calls PyTorch's kernels themselves; in half precision rounding to the nearest is another wrapper."""
    kernels = []
    for options in (poptorch.Options(), stochastic()):
        for kind in (FLOAT, HALF):
            executor = poptorch.inferenceModel(Calls(torch.div), options.clone())
            executor.compile(*(each.to(kind) for each in operands()))
            run = executor._executable.compiled.graph.run
            kernels.append(next(value for name, value in run.__globals__.items() if name == "_0"))
            executor.destroy()
    assert kernels[0] is kernels[2] is torch.div
    assert torch.div not in (kernels[1], kernels[3]) and kernels[1] is not kernels[3]


def test_nothing_is_compiled_by_torch_while_it_is_on(monkeypatch):
    """Fused kernels have no results of single operators to round."""
    monkeypatch.setattr("ignite_ipu.emulator.runtime.loading.torch_compile_wanted", lambda: True)
    x, y = operands()
    found = run(torch.div, x, y, options=stochastic(1))
    monkeypatch.undo()
    assert torch.equal(found, run(torch.div, x, y, options=stochastic(1)))


# -- gradients ----------------------------------------------------------------------------------------------------


class Gradient(nn.Module):
    """Weights with the gradient x * y / 3, whose product float16 does not hold."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n).half())

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss((self.weight * x * y).float() / 3, "sum")


N = 4000


RATE = 0.0625


def trained(accum_type: torch.dtype = FLOAT, accumulation: int = 1) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return the last micro-batch's gradient, and the weights after one step from zero."""
    model = Gradient(N)
    options = stochastic()
    options.Training.gradientAccumulation(accumulation)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    options.anchorTensor("gradient", "Gradient___weight")
    optimizer = poptorch.optim.SGD(model.parameters(), lr=RATE, accum_type=accum_type)
    executor = poptorch.trainingModel(model, options, optimizer)
    executor(torch.full((accumulation, 1), 1.3).half(), torch.full((accumulation, 1), 0.7).half())
    executor.destroy()
    return executor.getAnchoredTensor("gradient").float(), model.weight.detach().float()


def test_gradients_are_rounded_at_random():
    """Each of the backward pass's operators rounds: the mean of thousands of alike gradients is the exact one."""
    found, _ = trained()
    exact = float(torch.tensor(1.3).half()) * float(torch.tensor(0.7).half()) / 3
    assert 2 <= len(found.unique()) <= 6
    error = found.std().item() / N**0.5
    assert abs(found.mean().item() - exact) < 5 * error


def test_sums_in_half_are_rounded_at_random():
    """Sixteen gradients of 0.3 move by the rate times 4.8 on average, not by a multiple of float16's resolution."""
    _, weights = trained(accum_type=HALF, accumulation=16)
    found = -weights / RATE
    exact = 16 * float(torch.tensor(1.3).half()) * float(torch.tensor(0.7).half()) / 3
    error = found.std().item() / N**0.5
    assert abs(found.mean().item() - exact) < 5 * error < 1e-3
