"""`PopVisionProfiler`: a report of a few iterations, and a training that goes on as if there had been none."""

from __future__ import annotations

import pytest
import torch
from ignite.engine import Engine, Events
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import create_ipu_trainer
from ignite_ipu.errors import SessionError
from ignite_ipu.handlers import Gradients, PopVisionProfiler
from tests.supervised import assert_same_weights, network, pair, task


def train(folder=None, **iterations):
    model, optimizer = pair(momentum=0.9)
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    if folder is not None:
        PopVisionProfiler(folder, **iterations).attach(trainer)
    found = []
    reports = lambda: folder is not None and any(path.is_file() for path in folder.rglob("*"))  # noqa: E731
    trainer.add_event_handler(Events.ITERATION_STARTED, lambda: found.append(reports()))
    trainer.run(DataLoader(task(), batch_size=8), max_epochs=1)
    trainer.ipu.close()
    return model, found


def test_the_report_appears_with_the_range_and_changes_nothing(tmp_path):
    plain, _ = train()
    profiled, found = train(tmp_path / "report", first=3, last=4)
    assert_same_weights(profiled, plain)
    assert found[:2] == [False, False] and any(found[4:])


def test_a_range_that_outlasts_the_run_ends_with_it(tmp_path):
    plain, _ = train()
    profiled, _ = train(tmp_path / "report", first=7, last=100)
    assert_same_weights(profiled, plain)
    assert any((tmp_path / "report").rglob("*"))


def test_a_run_that_fails_ends_it(tmp_path):
    """The next run is not profiled."""
    trainer = create_ipu_trainer(*pair(momentum=0.9), nn.CrossEntropyLoss())
    PopVisionProfiler(tmp_path / "report", first=2, last=3).attach(trainer)
    plain = trainer.ipu.training.resolved

    @trainer.on(Events.ITERATION_COMPLETED(once=2))
    def fail():
        assert trainer.ipu.training.resolved is not plain
        raise ValueError("a handler of the user's")

    with pytest.raises(ValueError, match="user's"):
        trainer.run(DataLoader(task(), batch_size=8))
    assert trainer.ipu.training.resolved is plain
    trainer.ipu.close()


@pytest.mark.parametrize("gradients_first", [True, False])
def test_gradients_come_back_from_a_profiled_program_and_from_the_ones_around_it(tmp_path, gradients_first):
    """In every iteration, whichever handler was attached first: with a rate of zero they are those of the weights."""
    model, optimizer = pair(lr=0.0)
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    handlers = [Gradients(), PopVisionProfiler(tmp_path / "report", first=2, last=3)]
    for handler in handlers if gradients_first else reversed(handlers):
        handler.attach(trainer)
    shown = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: shown.append(model[0].weight.grad.clone()))
    trainer.run(DataLoader(task(), batch_size=8), epoch_length=5)
    trainer.ipu.close()
    plain = network()
    for gradient, (x, y) in zip(shown, DataLoader(task(), batch_size=8)):
        plain.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        torch.testing.assert_close(gradient, plain[0].weight.grad)
    assert len(shown) == 5


@pytest.mark.parametrize(("first", "last"), [(0, 3), (4, 3)])
def test_what_is_no_range_is_refused(tmp_path, first, last):
    with pytest.raises(ValueError, match=f"Iterations {first} to {last}"):
        PopVisionProfiler(tmp_path, first, last)


def test_other_engines_are_refused(tmp_path):
    with pytest.raises(SessionError, match="enableProfiling"):
        PopVisionProfiler(tmp_path, 1).attach(Engine(lambda engine, batch: None))
