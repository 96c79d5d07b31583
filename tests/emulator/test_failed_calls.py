"""State after a call that fails half-way: the updates made before, and nothing of the one that failed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch


class Classifier(nn.Module):
    """A layer and a running mean, whose loss fails for labels that there are not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x, label):
        out = self.layer(x)
        self.mean.mul_(0.5).add_(out.mean(0))
        return nn.functional.cross_entropy(out + self.mean, label)


GOOD, BAD = torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 1, 9])


def trained(options: poptorch.Options) -> poptorch.PoplarExecutor:
    model = Classifier()
    return poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9))


def start_again(executor: poptorch.PoplarExecutor, mean: torch.Tensor) -> None:
    executor.load_state_dict({**Classifier().state_dict(), "mean": mean})


def test_gradients_accumulated_before_a_failure_are_forgotten():
    options = poptorch.Options().deviceIterations(1)
    options.Training.gradientAccumulation(4)
    x = torch.randn(4, 3)
    failed, untouched = trained(options), trained(options)
    with pytest.raises(IndexError):
        failed(x, BAD)
    start_again(failed, torch.zeros(2))
    torch.testing.assert_close(failed(x, GOOD), untouched(x, GOOD))
    torch.testing.assert_close(failed.layer.weight.detach(), untouched.layer.weight.detach())


def test_updates_made_before_a_failure_reach_the_host():
    x = torch.randn(4, 3)
    failed = trained(poptorch.Options().deviceIterations(4))
    three = trained(poptorch.Options().deviceIterations(3))
    with pytest.raises(IndexError):
        failed(x, BAD)
    three(x[:3], GOOD[:3])
    torch.testing.assert_close(failed.layer.weight.detach(), three.layer.weight.detach())


def test_gradients_do_not_flow_into_a_call_that_failed():
    """A buffer that forward wrote to remembers the operators that it came from until the micro-batch is over."""
    x = torch.randn(4, 3)
    failed, fresh = trained(poptorch.Options()), trained(poptorch.Options())
    with pytest.raises(IndexError):
        failed(x, BAD)
    failed.copyWeightsToHost()
    # Of the buffers of two executors, which are of two classes, PyTorch computes nothing: it is given ordinary tensors.
    state = failed.model.state_dict()
    fresh.load_state_dict({name: torch.from_numpy(value.numpy()) for name, value in state.items()})
    torch.testing.assert_close(failed(x, GOOD), fresh(x, GOOD))
    torch.testing.assert_close(failed.layer.weight.detach(), fresh.layer.weight.detach())
