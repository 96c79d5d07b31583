"""The progress bar of a compilation."""

from __future__ import annotations

import io

from torch import nn

from ignite_ipu import create_ipu_trainer
from ignite_ipu.handlers import CompilationProgress
from tests.supervised import pair, task


def test_each_compilation_has_a_bar_that_ends():
    """The bar is complete when the program is compiled, and a second run compiles nothing."""
    screen = io.StringIO()
    trainer = create_ipu_trainer(*pair(), nn.CrossEntropyLoss())
    CompilationProgress(desc="Compiling", file=screen).attach(trainer)
    for _ in range(2):
        trainer.run([task()[:8]])
    assert screen.getvalue().count("1/1") == 1
    assert screen.getvalue().count("0/1") == 1
