"""Batches that are cut into micro-batches of the device train as whole ones do in plain PyTorch."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ignite_ipu.emulator as poptorch
from ignite_ipu import OptionsError, create_ipu_trainer, ipu_prepare
from ignite_ipu.deferred import captured
from ignite_ipu.errors import CaptureError
from tests.supervised import assert_same_weights, task

X, Y = task().tensors
Values = Tuple[torch.Tensor, ...]


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def mean(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Values:
    """Return a mean loss, and values that it is computed from: a row for each sample, and a mean of these."""
    scores = model(x)
    energy = scores.square().mean(0)
    return F.cross_entropy(scores, y) + 0.1 * energy.sum(), scores, energy, scores.argmax(1) == y


def total(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Values:
    scores = model(x)
    energy = scores.square().sum(0)
    return F.cross_entropy(scores, y, reduction="sum") + 0.1 * energy.sum(), energy


def penalized(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Values:
    """Return a mean loss with a penalty of the weights, and a factor that changes."""
    factor = 0.01 + float(x[0, 0]) ** 2
    return (F.cross_entropy(model(x), y) + factor * sum(each.norm() for each in model.parameters()),)


def train(model: nn.Module, optimizer: Any, of: Callable[..., Values], accumulation: int = 1, size: int = 8) -> Any:
    kept: List[Any] = []
    for number, (x, y) in enumerate(zip(X.split(size), Y.split(size)), 1):
        loss, *values = of(model, x, y)
        loss.backward()
        kept.append([each.detach() for each in (loss, *values)])
        if number % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
    return [[each.clone() for each in values] for values in kept]


def check(config: Dict[str, Any], of: Callable[..., Values] = mean, make: Any = network, **loop: Any) -> Any:
    """Compare a loop with plain PyTorch; return the program's options."""
    native, model = make(), make()
    steps = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (native, model)]
    ipu_prepare(steps[1], model, config=config)
    expected = train(native, steps[0], of, **loop)
    for mine, theirs in zip(train(model, steps[1], of, **loop), expected):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert_same_weights(model, native, rtol=1e-4, atol=1e-5)
    return captured(model).session.training.executor.options


@pytest.mark.parametrize("of", [mean, total, penalized])
def test_pieces_make_the_update_and_the_values_of_the_whole(of):
    assert check({"split_batch": 4}, of).Training.gradient_accumulation == 4


def test_pieces_fill_a_pipeline_and_replicas():
    options = check({"split_batch": 4, "pipeline": ["0", "2"]})
    assert type(options._execution_strategy) is poptorch.PipelinedExecution
    options = check({"split_batch": 4, "replication_factor": 2}, accumulation=2)
    assert (options.Training.gradient_accumulation, options.replication_factor) == (4, 2)
    options = check({"split_batch": 4, "pipeline": ["0", "2"], "update": "host"})
    assert type(options._execution_strategy) is poptorch.PipelinedExecution


def test_dropout_is_left_out_of_the_comparison_alone():
    def make() -> nn.Module:
        return nn.Sequential(network(), nn.Dropout(0.5))

    model = make()
    sgd = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model, config={"split_batch": 2})
    (values,) = train(model, sgd, lambda *each: mean(*each)[:1], size=64)
    assert model[1].training and torch.isfinite(values[0])
    with torch.no_grad():
        assert float(values[0]) != pytest.approx(float(mean(network(), X, Y)[0]), rel=1e-3)


def test_an_incomplete_last_batch_is_its_own_micro_batch():
    options = check({"split_batch": 3}, size=12)  # 64 = 5 * 12 + 4
    assert options.Training.gradient_accumulation == 1


class Reshaped(nn.Sequential):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x).reshape(8, 3)


class Counted(nn.Sequential):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__(*network())
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, input: torch.Tensor) -> Any:
        self.calls += 1
        return super().forward(input)


class Averaged(nn.Module):
    """Keeps a running average of its features in a buffer, and a table that each call writes alike."""

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.net, self.momentum = network(), momentum
        self.register_buffer("average", torch.zeros(6))
        self.register_buffer("table", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            self.table.copy_(torch.arange(3.0))
            self.average.lerp_(x.mean(0), self.momentum)
        return self.net(x) + self.table


def variance(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Values:
    return (model(x).var(0).sum(),)


def weighted(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Values:
    """Return a mean over those samples that count."""
    return (F.cross_entropy(model(x), y.masked_fill(x[:, 0] > 0, -100)),)


def largest(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Values:
    scores = model(x)
    top = scores.max()
    return F.cross_entropy(scores, y) + 0.0 * top, top


def noisy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Values:
    scores = model(x)
    return (F.cross_entropy(scores * torch.bernoulli(scores.detach().sigmoid()), y),)


@pytest.mark.parametrize(
    ("of", "make", "message"),
    [
        (variance, network, "the loss is no mean over rows"),
        (weighted, network, "the loss of the first batch is .* the mean over its pieces"),
        (largest, network, r"a result of max \(.*test_splitting.py:\d+.*\) that is no row for each sample"),
        (noisy, network, "draws random numbers outside of layers of dropout"),
        (mean, lambda: Reshaped(*network()), r"does not compute pieces of 4 of the 8 rows: .*x.shape\[0\]"),
        (mean, lambda: nn.Sequential(nn.BatchNorm1d(6), *network()), "but 0 normalises by the statistics of a batch"),
        (mean, lambda: Averaged(0.1), "forward writes into average, and 2 calls for pieces"),
        (mean, Counted, "forward writes into calls, and 2 calls for pieces"),
    ],
)
def test_a_step_that_pieces_would_change_is_refused_before_it_runs(of, make, message):
    model = make()
    before = [weight.clone() for weight in model.parameters()]
    sgd = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model, config={"split_batch": 2})
    with pytest.raises(CaptureError, match=message):
        train(model, sgd, of)
    for weight, old in zip(model.parameters(), before):
        torch.testing.assert_close(weight, old, rtol=0, atol=0)


def test_buffers_that_each_piece_writes_alike():
    model, native = Averaged(0.0), Averaged(0.0)
    sgd = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model, config={"split_batch": 2})
    train(model, sgd, mean)
    train(native, torch.optim.SGD(native.parameters(), lr=0.1), mean)
    torch.testing.assert_close(dict(model.state_dict()), dict(native.state_dict()), rtol=1e-4, atol=1e-6)


def test_gradients_of_inputs_are_refused():
    model = network()
    ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model, config={"split_batch": 2, "update": "host"})
    with pytest.raises(CaptureError, match=r"a device call has several micro-batches\. Leave out"):
        F.cross_entropy(model(X[:8].clone().requires_grad_()), Y[:8]).backward()


def test_what_cannot_be_cut_is_refused():
    with pytest.raises(CaptureError, match="split_batch is 3, but the batch has 8 rows, which 3 does not divide"):
        check({"split_batch": 3})
    model = network()
    with pytest.raises(OptionsError, match="split_batch=2 cuts the batches of loops"):
        create_ipu_trainer(
            model, torch.optim.SGD(model.parameters(), lr=0.1), F.cross_entropy, config={"split_batch": 2}
        )
