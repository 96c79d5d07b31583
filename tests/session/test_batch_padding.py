"""An evaluation whose last batch is incomplete has Ignite's own values, or is refused because its samples are mixed."""

from __future__ import annotations

import pytest
from ignite.engine import create_supervised_evaluator
from ignite.metrics import Accuracy, Loss
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import create_ipu_averages_evaluator, create_ipu_evaluator
from ignite_ipu.errors import RowsError
from tests.supervised import network, task


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, x):
        y = self.network(x)
        return y - y.mean(0)


class Similarities(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, x):
        z = F.normalize(self.network(x), dim=1)
        return (z @ z.t()).softmax(1) @ z


class Unchanged(nn.Module):
    """Looks at the whole batch, but for nothing that changes a prediction."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, x):
        return self.network(x) + 0.0 * x.mean()


class Noisy(nn.Module):
    """Draws random numbers in evaluation, too."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, x):
        return F.dropout(self.network(x), 0.5, training=True)


def normalised():
    return nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), network())


def measured(create, model, samples=20, batch_size=8, drop_last=False, **settings):
    evaluator = create(model, {"accuracy": Accuracy(), "loss": Loss(nn.CrossEntropyLoss())}, **settings)
    state = evaluator.run(DataLoader(task(samples), batch_size=batch_size, drop_last=drop_last))
    return evaluator, tuple(state.metrics.values())


MIXING = {"batch statistics": normalised, "a mean": Centred, "similarities": Similarities}


@pytest.mark.parametrize("factors", [{}, {"device_iterations": 2}])
@pytest.mark.parametrize("samples", [17, 20])
@pytest.mark.parametrize("make", MIXING.values(), ids=MIXING)
def test_filling_that_would_change_predictions_is_refused(make, samples, factors):
    """With any number of samples in the incomplete batch; in eager PyTorch only its own samples are mixed."""
    with pytest.raises(RowsError, match=r"changes the predictions.*mixes the samples.*drop_last=True"):
        measured(create_ipu_evaluator, make(), samples, **factors)


@pytest.mark.parametrize("make", [normalised, network])
def test_averages_on_the_device_are_those_of_the_samples(make):
    """Or refused, too."""
    averages = {"loss": lambda y_pred, y: F.cross_entropy(y_pred, y, reduction="none")}
    evaluator = create_ipu_averages_evaluator(make(), averages)
    loader = DataLoader(task(20), batch_size=8)
    if make is normalised:
        with pytest.raises(RowsError, match="mixes the samples of a batch"):
            evaluator.run(loader)
        return
    _, (_, native) = measured(create_supervised_evaluator, make())
    assert evaluator.run(loader).metrics["loss"] == pytest.approx(native, rel=1e-5)


def test_batch_normalisation_that_mixes_is_named():
    with pytest.raises(RowsError, match=r"Sequential mixes the samples of a batch \(0 normalises by the batch"):
        measured(create_ipu_evaluator, normalised())


@pytest.mark.parametrize("make", [*MIXING.values(), Unchanged, lambda: nn.Sequential(nn.BatchNorm1d(6), network())])
@pytest.mark.parametrize("settings", [{"samples": 24}, {"drop_last": True}, {"batch_size": 10}])
def test_ways_out_give_the_native_values(make, settings):
    (_, native), (_, ipu) = (
        measured(create, make(), **settings) for create in (create_supervised_evaluator, create_ipu_evaluator)
    )
    assert ipu == pytest.approx(native, rel=1e-5)


@pytest.mark.parametrize("make", MIXING.values(), ids=MIXING)
def test_whole_micro_batches_of_filling_harm_nobody(make):
    """Three micro-batches in calls of two: the last call has a whole one of filling."""
    (_, native), (_, ipu) = (
        measured(create_supervised_evaluator, make(), samples=24),
        measured(create_ipu_evaluator, make(), samples=24, device_iterations=2),
    )
    assert ipu == pytest.approx(native, rel=1e-5)


@pytest.mark.parametrize("make", [network, Unchanged])
def test_finding_out_costs_one_call_of_each_program(make):
    (_, native), (evaluator, ipu) = (
        measured(create, make()) for create in (create_supervised_evaluator, create_ipu_evaluator)
    )
    assert ipu == pytest.approx(native, rel=1e-5)
    (program,) = evaluator.ipu.evaluations
    assert poptorch.counters(program.executor).device_calls == 3 + 1
    evaluator.run(DataLoader(task(20), batch_size=8))
    assert poptorch.counters(program.executor).device_calls == 2 * 3 + 1


def test_random_predictions_are_not_taken_for_mixed_ones():
    evaluator, _ = measured(create_ipu_evaluator, Noisy())
    assert evaluator.state.iteration == 3
