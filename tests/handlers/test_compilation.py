"""The progress bar of a compilation."""

from __future__ import annotations

import io
import sys

import pytest
import torch
from torch import nn
from tqdm import tqdm

from ignite_ipu import create_ipu_evaluator, create_ipu_trainer, emulator
from ignite_ipu.handlers import CompilationProgress, compilation
from tests.supervised import pair, task


class DependsOnValues(nn.Linear):
    """Cannot be traced until `decides` is False."""

    decides = True

    def forward(self, x):
        return super().forward(x if not self.decides or x.sum() > 0 else -x)


@pytest.fixture
def bars(monkeypatch):
    """The bars that were made; tqdm disables a bar that is closed."""
    made = []

    class Bar(tqdm):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(compilation, "tqdm", Bar)
    return made


@pytest.fixture
def trainer():
    model = DependsOnValues(6, 3)
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    CompilationProgress(file=io.StringIO()).attach(trainer)
    return trainer


def test_each_compilation_has_a_bar_that_ends(bars):
    """The bar is complete when the program is compiled, and a second run compiles nothing."""
    screen = io.StringIO()
    trainer = create_ipu_trainer(*pair(), nn.CrossEntropyLoss())
    CompilationProgress(desc="Compiling", file=screen).attach(trainer)
    for _ in range(2):
        trainer.run([task()[:8]])
    assert [(bar.n, bar.disable) for bar in bars] == [(1, True)]
    assert "Compiling: 00:0" in screen.getvalue() and "1/1" in screen.getvalue()


def test_it_is_the_only_bar(bars, monkeypatch, capsys):
    """PopTorch's own is hidden, in training and in an evaluation that follows from it."""
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True, raising=False)
    for attached in (False, True):
        trainer = create_ipu_trainer(*pair(), nn.CrossEntropyLoss())
        if attached:
            CompilationProgress().attach(trainer)
        trainer.run([task()[:8]])
        create_ipu_evaluator(trainer.ipu.model).run([task()[:8]])
        trainer.ipu.close()
        shown = capsys.readouterr().err
        assert ("Graph compilation" in shown, "Compiling for the IPU" in shown) == (not attached, attached)


def test_a_compilation_that_fails_ends_its_bar(trainer, bars):
    """It stays incomplete."""
    with pytest.raises(emulator.Error, match="needs the value of a tensor"):
        trainer.run([task()[:8]])
    assert [(bar.n, bar.disable) for bar in bars] == [(0, True)]


def test_a_compilation_that_fails_in_another_engines_run_ends_its_bar_with_the_next(trainer, bars):
    """The bar of an evaluator's program, whose end the trainer does not hear of."""
    with pytest.raises(emulator.Error, match="needs the value of a tensor"):
        create_ipu_evaluator(trainer.ipu.model).run([task()[:8]])
    trainer.ipu.model.decides = False
    trainer.run([task()[:8]])
    assert [(bar.n, bar.disable) for bar in bars] == [(0, True), (1, True)]
