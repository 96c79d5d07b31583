"""Training on a device equals a plain PyTorch loop over the same rows."""

from __future__ import annotations

import itertools
from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch

UPDATES = 12  # which every number of device iterations divides
MANY_UPDATES = 50
ROWS = 2
FACTORS = [1, 2, 4]


def square(number: int) -> List[Tuple[int, int, int]]:
    """Return nine triples, in which any two factors have all of their pairs; three squares have all triples."""
    pairs = itertools.product(range(len(FACTORS)), repeat=2)
    return [(FACTORS[one], FACTORS[two], FACTORS[(number - one - two) % len(FACTORS)]) for one, two in pairs]


class Net(nn.Module):
    """A small network that computes its loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.second(torch.tanh(self.first(x))), y)


def groups(net: Net, **second: Any) -> List[Dict[str, Any]]:
    return [{"params": net.first.parameters()}, {"params": net.second.parameters(), **second}]


class PlainLAMB(torch.optim.Optimizer):
    """LAMB straight from its paper, one weight at a time."""

    def __init__(self, params: Any, lr: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for w in group["params"]:
                state = self.state[w]
                t = state["t"] = state.get("t", 0) + 1
                m = state["m"] = 0.9 * state.get("m", 0) + 0.1 * w.grad
                v = state["v"] = 0.999 * state.get("v", 0) + 0.001 * w.grad**2
                x = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8) + group["weight_decay"] * w
                norms = w.norm(), x.norm()
                trust = norms[0] / norms[1] if norms[0] > 0 and norms[1] > 0 else 1.0
                w -= group["lr"] * trust * x


Make = Callable[[Net], torch.optim.Optimizer]
OPTIMIZERS: Dict[str, Tuple[Make, Make]] = {
    "SGD": (lambda n: poptorch.optim.SGD(n.parameters(), lr=0.1), lambda n: torch.optim.SGD(n.parameters(), lr=0.1)),
    "SGD, momentum, decay, a group of its own": (
        lambda n: poptorch.optim.SGD(groups(n, lr=0.01, momentum=0.5), lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda n: torch.optim.SGD(groups(n, lr=0.01, momentum=0.5), lr=0.1, momentum=0.9, weight_decay=0.01),
    ),
    "SGD, nesterov": (
        lambda n: poptorch.optim.SGD(n.parameters(), lr=0.05, momentum=0.9, nesterov=True),
        lambda n: torch.optim.SGD(n.parameters(), lr=0.05, momentum=0.9, nesterov=True),
    ),
    "SGD, combined": (
        lambda n: poptorch.optim.SGD(n.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1, use_combined_accum=True),
        lambda n: torch.optim.SGD(n.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
    ),
    "Adam": (
        lambda n: poptorch.optim.Adam(groups(n, weight_decay=0.3), lr=0.01, weight_decay=0.1),
        lambda n: torch.optim.Adam(groups(n, weight_decay=0.3), lr=0.01, weight_decay=0.1),
    ),
    "AdamW": (
        lambda n: poptorch.optim.AdamW(groups(n, betas=(0.5, 0.9)), lr=0.01, weight_decay=0.1),
        lambda n: torch.optim.AdamW(groups(n, betas=(0.5, 0.9)), lr=0.01, weight_decay=0.1),
    ),
    "RMSprop": (
        lambda n: poptorch.optim.RMSprop(n.parameters(), lr=0.01, weight_decay=0.1),
        lambda n: torch.optim.RMSprop(n.parameters(), lr=0.01, weight_decay=0.1),
    ),
    "RMSprop, centered, momentum": (
        lambda n: poptorch.optim.RMSprop(n.parameters(), lr=0.001, centered=True, momentum=0.9, eps=1e-3),
        lambda n: torch.optim.RMSprop(n.parameters(), lr=0.001, centered=True, momentum=0.9, eps=1e-3),
    ),
    "LAMB": (
        lambda n: poptorch.optim.LAMB(n.parameters(), lr=0.01, weight_decay=0.1),
        lambda n: PlainLAMB(n.parameters(), lr=0.01, weight_decay=0.1),
    ),
    "torch.optim.AdamW": (
        lambda n: torch.optim.AdamW(n.parameters(), lr=0.01),
        lambda n: torch.optim.AdamW(n.parameters(), lr=0.01),
    ),
}


@pytest.mark.parametrize(
    ("name", "d", "a", "r", "updates"),
    [
        (name, *each)
        for number, name in enumerate(OPTIMIZERS)
        for each in [*((*factors, UPDATES) for factors in square(number)), (2, 2, 2, MANY_UPDATES)]
    ],
)
def test_weights_after_many_updates(name, d, a, r, updates):
    """D updates a call, each from the mean of A * R micro-batches' gradients at the same weights."""
    on_device, plain = OPTIMIZERS[name]
    net, reference = Net(), Net()
    options = poptorch.Options().deviceIterations(d).replicationFactor(r)
    options.Training.gradientAccumulation(a)
    model = poptorch.trainingModel(net, options, on_device(net))
    optimizer = plain(reference)
    torch.manual_seed(6)
    for _ in range(updates // d):
        x, y = torch.randn(d * a * r * ROWS, 3), torch.randn(d * a * r * ROWS, 2)
        model(x, y)
        for rows, targets in zip(x.split(a * r * ROWS), y.split(a * r * ROWS)):
            optimizer.zero_grad()
            reference(rows, targets).backward()  # a mean over all rows is the mean of the micro-batches' means
            optimizer.step()
    for mine, expected in zip(net.parameters(), reference.parameters()):
        torch.testing.assert_close(mine.detach().as_subclass(torch.Tensor), expected.detach(), rtol=2e-4, atol=2e-5)


def test_sum_reduction_does_not_divide():
    """With ReductionType.Sum the learning rate has to be divided by A * R to get the same result."""
    weights = []
    for reduction, lr in ((poptorch.ReductionType.Mean, 0.1), (poptorch.ReductionType.Sum, 0.1 / 4)):
        net = Net()
        options = poptorch.Options().replicationFactor(2)
        options.Training.gradientAccumulation(2).accumulationAndReplicationReductionType(reduction)
        model = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=lr))
        torch.manual_seed(6)
        model(torch.randn(8, 3), torch.randn(8, 2))
        weights.append(torch.cat([parameter.detach().flatten() for parameter in net.parameters()]))
    torch.testing.assert_close(*weights)


def test_batch_normalisation_runs_over_one_micro_batch_at_a_time():
    """Running statistics move once per micro-batch, by that micro-batch's rows."""

    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.l1_loss(self.norm(x), torch.zeros_like(x))

    net, reference = Normalised(), nn.BatchNorm1d(3)
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(2)
    model = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=0.0001))
    x = torch.randn(16, 3)
    model(x)
    for rows in x.split(4):
        reference(rows)
    torch.testing.assert_close(net.norm.running_mean.detach(), reference.running_mean)
    torch.testing.assert_close(net.norm.running_var.detach(), reference.running_var)


@pytest.mark.parametrize("scaling", [1.0, 128.0])
def test_loss_scaling_changes_nothing_that_is_visible(scaling):
    """It is divided out of the gradients, and the reported loss is unscaled."""
    net, reference = Net(), Net()
    optimizer = poptorch.optim.SGD(net.parameters(), lr=0.1, loss_scaling=scaling)
    model = poptorch.trainingModel(net, optimizer=optimizer)
    x, y = torch.randn(4, 3), torch.randn(4, 2)
    loss = model(x, y)
    expected = reference(x, y)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(
        net.first.weight.detach(), reference.first.weight.detach() - 0.1 * reference.first.weight.grad
    )
