"""`RecompileWatch`: every compilation after the first is explained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ignite.engine import Engine, Events
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import backend, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.errors import SessionError
from ignite_ipu.handlers import RecompileWatch
from tests.handlers.test_optimizer_sync import WithLoss, batches
from tests.supervised import network, pair, task


@pytest.fixture
def trained():
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    watch = RecompileWatch()
    watch.attach(trainer)
    yield model, trainer, watch
    trainer.ipu.close()


def run(trainer, batch_size=16, epochs=1):
    trainer.state.max_epochs = None
    trainer.run(DataLoader(task(), batch_size), max_epochs=epochs)


def test_the_first_compilation_is_no_news(trained):
    _, trainer, watch = trained
    run(trainer, epochs=2)
    assert watch.found == []


def test_another_batch_size_after_a_release_is_named_with_its_line(trained, caplog):
    _, trainer, watch = trained
    run(trainer)
    trainer.ipu.release()
    run(trainer, batch_size=8)
    (found,) = watch.found
    assert found.program == "training" and found.before == 1
    assert any("x was a torch.float32 tensor of shape (16, 6) and is a torch.float32" in text for text in found.changes)
    assert Path(found.line.rsplit(":", 1)[0]) == Path(__file__)
    assert "is compiled again at iteration 1" in caplog.text


def test_frozen_layers_and_modules_in_another_mode_are_named(trained):
    model, trainer, watch = trained

    @trainer.on(Events.EPOCH_COMPLETED(once=1))
    def freeze():
        model[0].requires_grad_(False)

    run(trainer, epochs=2)
    (found,) = watch.found
    assert found.changes == [
        "parameter model.0.weight was trained and is frozen",
        "parameter model.0.bias was trained and is frozen",
    ]
    assert (found.before, found.iteration) == (1, 5)


class Scaled(nn.Module):
    """Computes with an attribute, and with a buffer of whole numbers."""

    def __init__(self):
        super().__init__()
        self.network = network()
        self.scale = 1.0
        self.register_buffer("order", torch.arange(3))

    def forward(self, x):
        return self.scale * self.network(x)[:, self.order]


@pytest.mark.parametrize("changed", ["scale", "model.order"])
def test_values_that_a_program_has_as_constants_are_named(changed, caplog):
    """As in the line of the log, in training and in evaluation."""
    model = Scaled()
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    evaluator, watch = create_ipu_evaluator(model), RecompileWatch()
    watch.attach(trainer)
    for epochs in (1, 2):
        trainer.run(DataLoader(task(), 16), max_epochs=epochs)
        evaluator.run(DataLoader(task(), 16))
        if changed == "scale":
            model.scale = 0.5
        else:
            model.order.copy_(torch.tensor([2, 0, 1]))
    assert [(found.program, found.changes) for found in watch.found] == [
        (program, [f"{changed} has changed, which is a constant of the program"])
        for program in ("training", "evaluation")
    ]
    assert f"have changed ({changed}): it is compiled again" in caplog.text
    trainer.ipu.close()


def test_a_mere_release_is_said_to_be_one(trained):
    _, trainer, watch = trained
    run(trainer)
    trainer.ipu.release()
    run(trainer)
    assert watch.found[0].changes == []
    assert "its program had been given back" in str(watch.found[0])


def test_an_executor_of_your_own_is_watched_call_by_call():
    """PopTorch refuses another shape; the watch has logged before what differs and since when."""
    poptorch = backend.poptorch()
    model = network()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    watch = RecompileWatch()
    executor = watch.watch(poptorch.trainingModel(WithLoss(model), poptorch.Options(), optimizer), "my model")
    x, y = batches(1)[0]
    executor(x, y)
    executor(x, y)
    with pytest.raises(poptorch.Error):
        executor(x[:4], y[:4])
    (found,) = watch.found
    assert (found.program, found.iteration, found.before) == ("my model", 2, 0)
    assert found.changes[0] == "argument 0 was torch.float32 of shape (8, 6) and is torch.float32 of shape (4, 6)"
    assert executor.isCompiled()
    executor.destroy()


def test_other_engines_are_refused():
    with pytest.raises(SessionError, match="watch"):
        RecompileWatch().attach(Engine(lambda engine, batch: torch.zeros(1)))
