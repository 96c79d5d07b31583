"""A classifier over four IPUs: blocks, stages, accumulation, offloaded state, training, inference, sharding."""

from __future__ import annotations

import copy

import numpy as np
import poptorch
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

learning_rate = 0.01
epochs = 3
batch_size = 10
training_iterations = 2
gradient_accumulation = 8
test_batch_size = 8
inference_iterations = 10


class ConvLayer(nn.Module):
    """Convolution, pooling, activation."""

    def __init__(self, in_channels, num_filters, kernel_size, pool_size) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, num_filters, kernel_size)
        self.pool = nn.MaxPool2d(pool_size)

    def forward(self, x):
        return torch.relu(self.pool(self.conv(x)))


class Network(nn.Module):
    """Four blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.layer2 = ConvLayer(1, 10, 3, 2), ConvLayer(10, 20, 2, 1)
        self.layer3, self.layer4 = nn.Linear(80, 64), nn.Linear(64, 10)

    def forward(self, x):
        with poptorch.Block("B1"):
            x = self.layer1(x)
        with poptorch.Block("B2"):
            x = self.layer2(x)
        with poptorch.Block("B3"):
            x = torch.relu(self.layer3(x.view(-1, 80)))
        with poptorch.Block("B4"):
            x = self.layer4(x)
        return x


class TrainingModelWithLoss(nn.Module):
    """The loss belongs to the last block."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model
        self.loss = nn.CrossEntropyLoss()

    def forward(self, args, labels=None):
        output = self.model(args)
        if labels is None:
            return output
        with poptorch.Block("B4"):
            return output, self.loss(output, labels)


def get_training_model(opts, model):
    return poptorch.trainingModel(
        TrainingModelWithLoss(model), opts, optimizer=poptorch.optim.AdamW(model.parameters(), lr=learning_rate)
    )


def accuracy(predictions, labels):
    labels = labels[-predictions.size(0) :]
    return (predictions.argmax(1) == labels).float().mean().item()


def stages():
    return [poptorch.Stage(f"B{n + 1}").ipu(n) for n in range(4)]


def training_options(strategy):
    opts = poptorch.Options().deviceIterations(training_iterations).outputMode(poptorch.OutputMode.All)
    opts.Training.gradientAccumulation(gradient_accumulation)
    opts.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    return opts.setExecutionStrategy(strategy)


# Worker processes import this file again: the code below is for the main one.
if __name__ == "__main__":
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images / 8 - 1, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target, dtype=torch.long)
    order = torch.tensor(np.random.RandomState(0).permutation(len(labels)))
    train_dataset = TensorDataset(images[order[:1440]], labels[order[:1440]])
    test_dataset = TensorDataset(images[order[1440:]], labels[order[1440:]])

    train_opts = training_options(poptorch.PipelinedExecution(*stages()))
    training_data = poptorch.DataLoader(
        train_opts,
        train_dataset,
        batch_size=batch_size,
        shuffle=True,
        mode=poptorch.DataLoaderMode.Async,
        num_workers=1,
    )
    assert training_data.combinedBatchSize == batch_size * training_iterations * gradient_accumulation == 160
    model = Network()
    start = copy.deepcopy(model)
    training_model = get_training_model(train_opts, model)
    for _ in range(epochs):
        for data, wanted in training_data:
            preds, losses = training_model(data, wanted)
            assert preds.shape == (160, 10) and losses.shape == (training_iterations * gradient_accumulation,)
            mean_loss, reached = torch.mean(losses).item(), accuracy(preds, wanted)
    training_data.terminate()
    assert mean_loss < 0.5 and reached > 0.8, (mean_loss, reached)
    training_model.detachFromDevice()

    inf_options = train_opts.clone()
    inf_options.Training.gradientAccumulation(1)
    inf_options.deviceIterations(inference_iterations)
    inference_model = poptorch.inferenceModel(model, inf_options)
    test_data = poptorch.DataLoader(inf_options, test_dataset, batch_size=test_batch_size, shuffle=True)
    tested = [accuracy(inference_model(data), wanted) for data, wanted in test_data]
    assert len(tested) == 357 // 80 and sum(tested) / len(tested) > 0.8, tested
    inference_model.destroy()

    # Neither the schedule nor the number of IPUs has a say in the result: it is the unpartitioned model's.
    data, wanted = train_dataset[:160]
    plain = copy.deepcopy(start)
    reference = torch.optim.AdamW(plain.parameters(), lr=learning_rate, weight_decay=0.01)
    for rows, targets in zip(data.split(80), wanted.split(80)):
        reference.zero_grad()
        nn.functional.cross_entropy(plain(rows), targets).backward()
        reference.step()
    for strategy in [
        poptorch.PipelinedExecution(*stages()),
        poptorch.PipelinedExecution(poptorch.Stage("B1", "B2").ipu(0), poptorch.Stage("B3", "B4").ipu(1)),
        poptorch.ShardedExecution(*stages()),
    ]:
        net = copy.deepcopy(start)
        wrapped = get_training_model(training_options(strategy), net)
        wrapped(data, wanted)
        wrapped.copyWeightsToHost()
        torch.testing.assert_close(dict(net.state_dict()), dict(plain.state_dict()), atol=1e-5, rtol=1e-4)
        wrapped.destroy()
