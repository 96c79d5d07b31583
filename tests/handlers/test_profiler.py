"""`PopVisionProfiler`: a report of a few iterations, and a training that goes on as if there had been none."""

from __future__ import annotations

import pytest
from ignite.engine import Engine, Events
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import create_ipu_trainer
from ignite_ipu.handlers import PopVisionProfiler
from ignite_ipu.session import SessionError
from tests.supervised import assert_same_weights, pair, task


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


@pytest.mark.parametrize(("first", "last"), [(0, 3), (4, 3)])
def test_what_is_no_range_is_refused(tmp_path, first, last):
    with pytest.raises(ValueError, match=f"Iterations {first} to {last}"):
        PopVisionProfiler(tmp_path, first, last)


def test_other_engines_are_refused(tmp_path):
    with pytest.raises(SessionError, match="enableProfiling"):
        PopVisionProfiler(tmp_path, 1).attach(Engine(lambda engine, batch: None))
