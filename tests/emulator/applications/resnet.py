"""A residual network on a Pod: `popdist` options, replicas in several instances, Horovod for values on the host.

It writes the trained weights to `argv[1]`, in the first instance only, and prints the mean loss.
"""

from __future__ import annotations

import sys

import horovod.torch as hvd
import popart
import popdist
import popdist.poptorch
import poptorch
import torch
from torch import nn

UPDATES, BATCH = 20, 2


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(2, channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x):
        return torch.relu(x + self.layers(x))


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), Block(4), nn.MaxPool2d(2), Block(4), nn.Flatten(), nn.Linear(36, 3)
    )


class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images, labels):
        out = self.model(images)
        return out, nn.functional.cross_entropy(out, labels)


def make_data(samples):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(samples, 1, 8, 8, generator=generator)
    return torch.utils.data.TensorDataset(images, (images.mean((1, 2, 3)) * 30).long().clamp(-1, 1) + 1)


def make_options():
    if popdist.isPopdistEnvSet():
        hvd.init()
        popdist.init()
        options = popdist.poptorch.Options(ipus_per_replica=1)
        hvd.broadcast(torch.Tensor([0]), root_rank=0)
    else:
        options = poptorch.Options()
    options.randomSeed(0)
    options.outputMode(poptorch.OutputMode.All)
    options.showCompilationProgressBar(False)
    options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(True))
    options.TensorLocations.numIOTiles(32)
    options._Popart.set("accumulateOuterFragmentSettings.schedule", int(popart.AccumulateOuterFragmentSchedule.Serial))
    options._Popart.set("accumulateOuterFragmentSettings.excludedVirtualGraphs", ["0"])
    options.Training.gradientAccumulation(2)
    return options


def main(path):
    options = make_options()
    replicas = popdist.getNumTotalReplicas()
    samples = UPDATES * BATCH * 2 * replicas
    loader = poptorch.DataLoader(options, make_data(samples), batch_size=BATCH, shuffle=False, drop_last=True)
    model = make_model()
    if popdist.isPopdistEnvSet():
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, use_combined_accum=False)
    training = poptorch.trainingModel(WithLoss(model), options, optimizer)
    for images, labels in loader:
        _, loss = training(images, labels)
    mean = loss.mean()
    if popdist.isPopdistEnvSet():
        mean = hvd.allreduce(mean)
        popdist.execute_on_instances({0}, lambda: torch.save({"weights": model.state_dict(), "loss": mean}, path))
    else:
        torch.save({"weights": model.state_dict(), "loss": mean}, path)
    training.destroy()


if __name__ == "__main__":
    main(sys.argv[1])
