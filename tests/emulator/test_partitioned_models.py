"""Models spread over IPUs compute the same as the whole model, and report where each operator ran."""

from __future__ import annotations

import copy
from typing import Any, Callable, Tuple

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.second = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        with poptorch.Block("front", ipu_id=0):
            x = torch.relu(self.first(x))
        with poptorch.Block("back", ipu_id=1):
            x = self.second(x)
            return x, nn.functional.mse_loss(x, target)


def phased() -> Any:
    strategy = poptorch.SerialPhasedExecution("front", "back")
    strategy.phase(0).ipus(0)
    strategy.phase(1).ipus(1)
    return strategy


STRATEGIES = [
    poptorch.PipelinedExecution,
    lambda: poptorch.PipelinedExecution("front", "back"),
    lambda: poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement),
    poptorch.ShardedExecution,
    phased,
    lambda: poptorch.ParallelPhasedExecution("front", "back"),
]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_updates_as_one_device_would(strategy: Callable[[], Any]) -> None:
    """One update with the mean gradient of three micro-batches is one step of plain PyTorch on all of them."""
    net, plain = Net(), Net()
    plain.load_state_dict(copy.deepcopy(net.state_dict()))
    x, target = torch.randn(12, 3), torch.randn(12, 2)
    options = poptorch.Options().setExecutionStrategy(strategy())
    options.Training.gradientAccumulation(3)
    model = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=0.1))
    model(x, target)
    model.copyWeightsToHost()
    model.destroy()

    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    plain(x, target)[1].backward()
    optimizer.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], value)


def test_too_short_a_pipeline_is_refused_at_the_first_call() -> None:
    net = Net()
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    model = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(poptorch.Error, match="gradientAccumulation must be greater than or equal"):
        model(torch.randn(4, 3), torch.randn(4, 2))


def test_the_text_of_an_executor_shows_the_blocks() -> None:
    net = nn.Sequential(nn.Linear(1, 1), poptorch.BeginBlock(nn.ReLU(), ipu_id=1))
    assert "(1): BeginBlock(user_id=None, ipu_id=1) ReLU()" in repr(poptorch.inferenceModel(net))
