"""A convolutional classifier written for a GPU, ported step by step: loss in the model, loader, optimizer, loop."""

from __future__ import annotations

import copy

import numpy as np
import poptorch
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images / 8 - 1, dtype=torch.float32).unsqueeze(1)
labels = torch.tensor(digits.target, dtype=torch.long)
order = torch.tensor(np.random.RandomState(0).permutation(len(labels)))
train_dataset = TensorDataset(images[order[:1440]], labels[order[:1440]])
test_dataset = TensorDataset(images[order[1440:]], labels[order[1440:]])


class Classifier(nn.Module):
    """Two convolutions, two linear layers, log-probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 12, 2)
        self.pool, self.relu, self.norm = nn.MaxPool2d(2, 2), nn.ReLU(), nn.GroupNorm(3, 12)
        self.fc1, self.fc2 = nn.Linear(48, 40), nn.Linear(40, 10)
        self.log_softmax = nn.LogSoftmax(dim=1)

    def forward(self, x):
        x = self.pool(self.relu(self.conv1(x)))
        x = self.norm(self.relu(self.conv2(x)))
        x = torch.flatten(x, start_dim=1)
        return self.log_softmax(self.fc2(self.relu(self.fc1(x))))


class ModelWithLoss(nn.Module):
    """A model of another author with a criterion, which is marked as the loss if PopTorch does not know it."""

    def __init__(self, model, criterion, marked=False) -> None:
        super().__init__()
        self.model, self.criterion, self.marked = model, criterion, marked

    def forward(self, x, labels=None):
        output = self.model(x)
        if labels is None:
            return output
        loss = self.criterion(output, labels)
        return output, poptorch.identity_loss(loss, reduction="sum") if self.marked else loss


def own_criterion(output, labels):
    return -output.gather(1, labels.unsqueeze(1)).mean()


opts = poptorch.Options()
model = Classifier()
start = copy.deepcopy(model)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
model.train()
with_loss = ModelWithLoss(model, nn.NLLLoss())
training_model = poptorch.trainingModel(with_loss, options=opts, optimizer=optimizer)
train_dataloader = poptorch.DataLoader(opts, train_dataset, batch_size=16, shuffle=True, num_workers=0)
first_loss = None
for _ in range(6):
    for data, wanted in train_dataloader:
        output, loss = training_model(data, wanted)
        first_loss = loss.item() if first_loss is None else first_loss
assert output.shape == (16, 10) and loss.item() < first_loss / 2
training_model.detachFromDevice()

model.eval()
inference_model = poptorch.inferenceModel(model, options=poptorch.Options())
test_dataloader = poptorch.DataLoader(poptorch.Options(), test_dataset, batch_size=17)
assert len(test_dataloader) * 17 == 357 == len(test_dataset)
correct = 0
for data, wanted in test_dataloader:
    correct += (inference_model(data).argmax(dim=1) == wanted).sum().item()
accuracy = correct / len(test_dataset)
assert accuracy > 0.9, accuracy
inference_model.detachFromDevice()

# Step by step it equals the GPU code, with either criterion.
data, wanted = train_dataset[:16]
plain = copy.deepcopy(start)
reference = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
for _ in range(3):
    reference.zero_grad()
    nn.functional.nll_loss(plain(data), wanted).backward()
    reference.step()
for criterion, marked in [(nn.NLLLoss(), False), (own_criterion, True)]:
    ported = copy.deepcopy(start)
    wrapped = poptorch.trainingModel(
        ModelWithLoss(ported, criterion, marked),
        optimizer=poptorch.optim.SGD(ported.parameters(), lr=0.05, momentum=0.9),
    )
    for _ in range(3):
        wrapped(data, wanted)
    wrapped.copyWeightsToHost()
    torch.testing.assert_close(dict(ported.state_dict()), dict(plain.state_dict()), atol=1e-5, rtol=1e-4)
    wrapped.destroy()
