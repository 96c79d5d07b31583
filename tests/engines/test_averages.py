"""Averages that the device sums up, compared with Ignite's metrics."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from ignite.engine import Events, create_supervised_evaluator
from ignite.metrics import Accuracy, Loss, MeanAbsoluteError
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import create_ipu_trainer
from ignite_ipu.engines.averages import create_ipu_averages_evaluator
from ignite_ipu.errors import BatchError
from tests.supervised import network, pair, task

AVERAGES = {
    "accuracy": lambda y_pred, y: (y_pred.argmax(1) == y).float(),
    "loss": lambda y_pred, y: F.cross_entropy(y_pred, y, reduction="none"),
    "error": lambda y_pred, y: (y_pred - F.one_hot(y, 3)).abs().sum(1),
}


def one_hot(output):
    return output[0], F.one_hot(output[1], 3).float()


def expected(model, loader):
    metrics = {"accuracy": Accuracy(), "loss": Loss(nn.CrossEntropyLoss()), "error": MeanAbsoluteError(one_hot)}
    found = create_supervised_evaluator(model, metrics).run(loader).metrics
    return {name: pytest.approx(value, rel=1e-5) for name, value in found.items()}


@pytest.mark.parametrize("geometry", [{}, {"device_iterations": 3}, {"device_iterations": 2, "replication_factor": 2}])
def test_values_are_ignite_s_whatever_a_call_holds(geometry):
    """61 samples fill no whole number of calls, and the padding of the last one is not counted."""
    model = network()
    loader = DataLoader(task(61), batch_size=5)
    evaluator = create_ipu_averages_evaluator(model, AVERAGES, **geometry)
    assert evaluator.run(loader).metrics == expected(model, loader)
    evaluator.ipu.close()


def test_during_training_the_newest_weights_count_and_only_sums_come_back():
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), gradient_accumulation_steps=2)
    evaluator = create_ipu_averages_evaluator(model, AVERAGES)
    loader = DataLoader(task(), batch_size=8)
    outputs = []
    evaluator.add_event_handler(Events.ITERATION_COMPLETED, lambda: outputs.append(evaluator.state.output))
    for _ in range(2):
        trainer.run(loader, max_epochs=trainer.state.epoch + 1)
        assert evaluator.run(loader).metrics == expected(model, loader)
    assert all(isinstance(value, (int, float)) for output in outputs for value in output.values())
    assert [output["samples"] for output in outputs] == [16] * 8
    trainer.ipu.close()


def test_filling_is_not_counted():
    """The filling repeats the last sample five times, which would pull the mean from 2 towards 3."""
    model = nn.Linear(1, 1)
    data = torch.utils.data.TensorDataset(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1.0, 2.0, 3.0]))
    evaluator = create_ipu_averages_evaluator(model, {"mean": lambda y_pred, y: y}, device_iterations=2)
    assert evaluator.run(DataLoader(data, batch_size=4)).metrics["mean"] == pytest.approx(2.0)
    evaluator.ipu.close()


def test_a_function_that_averages_itself_is_refused():
    evaluator = create_ipu_averages_evaluator(network(), {"loss": lambda y_pred, y: F.cross_entropy(y_pred, y)})
    with pytest.raises(BatchError, match=r"'loss' got values of shape .* for 8 samples"):
        evaluator.run(DataLoader(task(), batch_size=8))


@pytest.mark.parametrize("averages", [{}, {"samples": AVERAGES["loss"]}])
def test_missing_and_reserved_names_are_refused(averages):
    with pytest.raises(ValueError, match="at least one average"):
        create_ipu_averages_evaluator(network(), averages)
