"""Tools of a program: engines and executors that are given back behind it, and a folder of its own."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any, Callable

from torch import nn

from ignite_ipu import IPUSession, backend, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.selftest.reference import Pair, network, sgd

__all__ = ["Bench"]


class Bench:
    """Tools of one program.

    Args:
        folder: An empty folder.

    Attributes:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._behind = contextlib.ExitStack()

    @property
    def poptorch(self) -> Any:
        """PopTorch, the SDK's or the emulator."""
        return backend.poptorch()

    def options(self) -> Any:
        """Return new `poptorch.Options()`, with a bar that shows how compiling goes on a terminal only."""
        return self.poptorch.Options().showCompilationProgressBar(sys.stderr.isatty())

    def trainer(self, model: nn.Module, optimizer: Any, loss_fn: Any = None, **settings: Any) -> Any:
        """Return `create_ipu_trainer(...)`, with the cross entropy unless there is a loss."""
        settings = {"options": self.options(), **settings}
        trainer = create_ipu_trainer(model, optimizer, loss_fn or nn.CrossEntropyLoss(), **settings)
        self.afterwards(trainer.ipu.close)
        return trainer

    def pair(self, optimizer: Callable[[Any], Any] = sgd, model: Callable[[], Any] = network, **settings: Any) -> Pair:
        """Return a model with its native twin, and a trainer for the former."""
        pair = Pair(optimizer, model)
        pair.trainer = self.trainer(pair.model, pair.optimizer, **settings)
        return pair

    def evaluator(self, model: nn.Module, metrics: Any = None, **settings: Any) -> Any:
        """Return `create_ipu_evaluator(...)`."""
        if IPUSession.of(model).training is None:
            settings = {"options": self.options(), **settings}
        evaluator = create_ipu_evaluator(model, metrics, **settings)
        self.afterwards(evaluator.ipu.close)
        return evaluator

    def session(self, model: nn.Module) -> None:
        """Close the session that captured steps make for a model, when the program has ended."""
        self.afterwards(lambda: IPUSession.of(model).close())

    def training_model(self, model: nn.Module, options: Any, optimizer: Any) -> Any:
        """Return `poptorch.trainingModel(...)`."""
        executor = self.poptorch.trainingModel(model, options=options, optimizer=optimizer)
        self.afterwards(executor.destroy)
        return executor

    def inference_model(self, model: nn.Module, options: Any) -> Any:
        """Return `poptorch.inferenceModel(...)`."""
        executor = self.poptorch.inferenceModel(model, options=options)
        self.afterwards(executor.destroy)
        return executor

    def afterwards(self, callback: Callable[[], Any]) -> None:
        """Have something called when the program has ended, the last one first."""
        self._behind.callback(callback)

    def clear(self) -> None:
        """Give back all that the program has taken; everything is tried, and the last error raised."""
        self._behind.close()
