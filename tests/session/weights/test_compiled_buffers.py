"""Integers and booleans in buffers are current, on training and evaluating engines, as with Ignite's own."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.handlers import Recovery
from tests.supervised import assert_same_weights, network, task

LOADER = DataLoader(task(), batch_size=8)
NATIVE = create_supervised_trainer, create_supervised_evaluator
IPU = create_ipu_trainer, create_ipu_evaluator


class Permuted(nn.Module):
    """A network that reads its features in the order of one buffer, and those that another lets pass."""

    def __init__(self):
        super().__init__()
        self.register_buffer("order", torch.arange(6))
        self.register_buffer("mask", torch.ones(6, dtype=torch.bool))
        self.register_buffer("epochs", torch.tensor(0))
        self.norm = nn.BatchNorm1d(6)
        self.network = network()

    def forward(self, x):
        return self.network(self.norm(torch.where(self.mask, x[:, self.order], torch.zeros(()))))


class Labelled(nn.Module):
    """A loss with a table of labels."""

    def __init__(self):
        super().__init__()
        self.register_buffer("labels", torch.tensor([0, 1, 2]))

    def forward(self, y_pred, y):
        return F.cross_entropy(y_pred, self.labels[y])


def reverse(model, loss):
    model.order.copy_(torch.arange(5, -1, -1))


def mask(model, loss):
    model.mask[2:4] = False


def load(model, loss):
    state = copy.deepcopy(model.state_dict())
    state["order"] = state["order"].roll(1)
    state["mask"][0] = False
    model.load_state_dict(state)


def relabel(model, loss):
    loss.labels.copy_(torch.tensor([2, 0, 1]))


def run(create, evaluate, edit, loss_of=nn.CrossEntropyLoss):
    """Train with evaluations, `edit` the model after the second epoch; returns it and the metrics."""
    model, loss = Permuted(), loss_of()
    trainer = create(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), loss)
    evaluator = evaluate(model, {"accuracy": Accuracy(), "loss": Loss(nn.CrossEntropyLoss())})
    measured = []

    @trainer.on(Events.EPOCH_COMPLETED)
    def after_epoch():
        if trainer.state.epoch == 2:
            edit(model, loss)
        measured.append(tuple(evaluator.run(LOADER).metrics.values()))

    trainer.run(LOADER, max_epochs=4)
    return model, measured


@pytest.mark.parametrize("edit", [reverse, mask, load, relabel])
def test_what_is_written_into_constants_counts_from_then_on(edit, caplog):
    """Both programs are compiled again, which is said."""
    loss_of = Labelled if edit is relabel else nn.CrossEntropyLoss
    (native, expected), (ipu, found) = run(*NATIVE, edit, loss_of), run(*IPU, edit, loss_of)
    assert [pytest.approx(values, rel=1e-4) for values in expected] == found
    # A device does not count `num_batches_tracked`.
    assert_same_weights(ipu.network, native.network, rtol=1e-4, atol=1e-5)
    names = {reverse: "model.order", mask: "model.mask", load: "model.order, model.mask", relabel: "loss_fn.labels"}
    told = [text for text in (record.getMessage() for record in caplog.records) if "are compiled into the prog" in text]
    assert len(told) == (1 if edit is relabel else 2)
    assert all(f"have changed ({names[edit]}): it is compiled again" in text for text in told)


def test_what_is_written_after_a_fault_counts(tmp_path):
    """The program that recovery has compiled follows, too."""
    models = []
    for create in (create_supervised_trainer, create_ipu_trainer):
        model = Permuted()
        trainer = create(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
        if create is create_ipu_trainer:
            Recovery(tmp_path, backoff=0.0).attach(trainer)
        trainer.add_event_handler(Events.EPOCH_COMPLETED(once=2), lambda _, model=model: reverse(model, None))
        with poptorch.inject_faults({4: poptorch.Fault("IPU_RESET")}):
            trainer.run(LOADER, max_epochs=3)
        models.append(model.network)
    assert trainer.state.recovery.recoveries == 1
    assert_same_weights(*reversed(models), rtol=1e-4, atol=1e-5)


def test_an_evaluator_alone_follows_what_is_loaded():
    """Without a training program."""
    measured = []
    for _, evaluate in (NATIVE, IPU):
        model = Permuted()
        evaluator = evaluate(model, {"loss": Loss(nn.CrossEntropyLoss())})
        values = [evaluator.run(LOADER).metrics["loss"]]
        model.load_state_dict({**model.state_dict(), "order": torch.arange(5, -1, -1)})
        values.append(evaluator.run(LOADER).metrics["loss"])
        model.mask[1] = False
        measured.append([*values, evaluator.run(LOADER).metrics["loss"]])
    native, ipu = measured
    assert ipu == pytest.approx(native, rel=1e-5) and len(set(native)) == 3


def count_epochs(model, loss):
    model.epochs += 1
    model.norm.num_batches_tracked += 5
    with torch.no_grad():
        model.network[0].weight.mul_(0.9)


def test_what_no_program_reads_may_change(caplog):
    """A counter of epochs, batch normalisation's of batches, and weights: nothing is compiled again."""
    with caplog.at_level(logging.WARNING, logger="ignite_ipu"):
        (_, expected), (_, found) = run(*NATIVE, count_epochs), run(*IPU, count_epochs)
    assert [pytest.approx(values, rel=1e-4) for values in expected] == found
    assert "compiled again" not in caplog.text


def test_averages_of_weights_are_evaluated_by_one_program(caplog):
    """`AveragedModel` counts its averages in a buffer that its forward does not read."""
    model = network()
    average = AveragedModel(model)
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    evaluator = create_ipu_evaluator(average, {"accuracy": Accuracy()})

    @trainer.on(Events.EPOCH_COMPLETED)
    def measure():
        average.update_parameters(model)
        evaluator.run(LOADER)

    trainer.run(LOADER, max_epochs=3)
    assert int(average.n_averaged) == 3 and "compiled again" not in caplog.text
