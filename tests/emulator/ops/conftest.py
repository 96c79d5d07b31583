"""Running a function on the emulated device, for tests that are about one operator."""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Optional

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch
from tests.emulator.calls import Calls

Infer = Callable[..., Any]


@pytest.fixture
def executors() -> Iterator[List[Any]]:
    """Executors to destroy at the end."""
    made: List[Any] = []
    yield made
    for executor in made:
        executor.destroy()


@pytest.fixture
def compiled(executors: List[Any]) -> Infer:
    """Return an inference executor for a function: `compiled(function, options=None)`."""

    def wrap(function: Callable[..., Any], options: Optional[poptorch.Options] = None) -> Any:
        executors.append(poptorch.inferenceModel(Calls(function), options))
        return executors[-1]

    return wrap


@pytest.fixture
def infer(compiled: Infer) -> Infer:
    """Run a function on the device: `infer(function, *tensors, options=None)`."""

    def run(function: Callable[..., Any], *tensors: torch.Tensor, options: Optional[poptorch.Options] = None) -> Any:
        return compiled(function, options)(*tensors)

    return run


@pytest.fixture
def gradient(executors: List[Any]) -> Callable[..., Any]:
    """Return the gradient that a training step computes: `gradient(loss_of_weight, weight, *inputs)`."""

    class Weighted(nn.Module):
        def __init__(self, function: Callable[..., Any], weight: torch.Tensor) -> None:
            super().__init__()
            self.function = function
            self.weight = nn.Parameter(weight.clone())

        def forward(self, *inputs: torch.Tensor) -> Any:
            return self.function(self.weight, *inputs)

    def run(function: Callable[..., Any], weight: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        model = Weighted(function, weight)
        executors.append(poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=1.0)))
        executors[-1](*inputs)
        return weight - model.weight.detach()

    return run
