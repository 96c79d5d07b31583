"""Pipelined and sharded execution: their demands on accumulation, iterations and batch, and equal results."""

from __future__ import annotations

import poptorch
import torch
from torch import nn


class Net(nn.Module):
    """Four stages, on four IPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x, target=None):
        for ipu, layer in enumerate(self.layers):
            with poptorch.Block(f"stage{ipu}", ipu_id=ipu):
                x = torch.tanh(layer(x))
                if ipu == 3 and target is not None:
                    return x, nn.functional.l1_loss(x, target)
        return x


def train(accumulation, iterations=1, replicas=1, strategy=None):
    """Return the change of the first layer in one call, from the same start."""
    torch.manual_seed(3)
    net = Net()
    opts = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    opts.Training.gradientAccumulation(accumulation)
    if strategy is not None:
        opts.setExecutionStrategy(strategy)
    model = poptorch.trainingModel(net, opts, poptorch.optim.SGD(net.parameters(), lr=1.0))
    rows = accumulation * iterations * replicas
    model(torch.randn(rows, 6), torch.randn(rows, 6))
    moved = net.layers[0].weight.detach().clone()
    model.destroy()
    return moved


def refused(what, **arguments):
    try:
        train(**arguments)
    except poptorch.Error as error:
        assert what in str(error), error
    else:
        raise AssertionError(f"{arguments} should not compile")


# Four stages forward and four back, the last ones being one.
refused("gradientAccumulation must be greater than or equal", accumulation=6)
for iterations, replicas in [(1, 1), (2, 1), (1, 2)]:
    steps = iterations * 7 * replicas
    torch.manual_seed(3)
    net = Net()
    x, target = torch.randn(steps, 6), torch.randn(steps, 6)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    for part, wanted in zip(x.chunk(iterations), target.chunk(iterations)):
        optimizer.zero_grad()
        net(part, wanted)[1].backward()
        optimizer.step()
    torch.testing.assert_close(
        train(accumulation=7, iterations=iterations, replicas=replicas), net.layers[0].weight.detach()
    )

# One batch at a time needs no accumulation.
sharded = poptorch.ShardedExecution(*[poptorch.Stage(f"stage{ipu}") for ipu in range(4)])
torch.testing.assert_close(train(accumulation=7, strategy=sharded), train(accumulation=7))
train(accumulation=1, strategy=poptorch.ShardedExecution())

# Inference fills a pipeline with device iterations.
net = Net()
x = torch.randn(12, 6)
for iterations in (2, 4, 6):
    model = poptorch.inferenceModel(net, poptorch.Options().deviceIterations(iterations))
    try:
        result = model(x)
    except poptorch.Error as error:
        assert iterations < 4 and "deviceIterations must be greater" in str(error)
    else:
        assert iterations >= 4
        torch.testing.assert_close(result, net(x).detach())
    model.destroy()

# Layers that share weights run on one IPU as well as on two with blocks of one stage.
strategy = poptorch.PipelinedExecution(
    poptorch.Stage("stage0", "stage1").ipu(0), poptorch.Stage("stage2", "stage3").ipu(1)
)
assert strategy.stage("stage1").blocks == ("stage0", "stage1")
torch.testing.assert_close(train(accumulation=7, strategy=strategy), train(accumulation=7))
