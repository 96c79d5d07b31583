"""Classify scikit-learn's handwritten digits with a deep network, whose blocks are stages on four IPUs."""

from __future__ import annotations

import sys

import torch
from ignite.engine import Events
from ignite.metrics import Accuracy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import create_ipu_evaluator, create_ipu_trainer

MICRO_BATCHES = 8  # of each update; four stages need at least 2 * 4 - 1


class Block(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.inner = nn.Linear(features, 2 * features)
        self.outer = nn.Linear(2 * features, features)

    def forward(self, x):
        return x + self.outer(torch.relu(self.inner(self.norm(x))))


class Network(nn.Module):
    def __init__(self, features=48):
        super().__init__()
        self.embed = nn.Linear(64, features)
        self.blocks = nn.Sequential(*(Block(features) for _ in range(4)))
        self.head = nn.Linear(features, 10)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x)))


torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
train_loader = DataLoader(digits, batch_size=64 // MICRO_BATCHES, shuffle=True, drop_last=True)
test_loader = DataLoader(digits, batch_size=64)

model = Network()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
trainer = create_ipu_trainer(
    model,
    optimizer,
    nn.CrossEntropyLoss(),
    gradient_accumulation_steps=MICRO_BATCHES,
    pipeline=["embed", "blocks.1", "blocks.2", "blocks.3"],  # a stage begins at each, on the next IPU
)
evaluator = create_ipu_evaluator(model, {"accuracy": Accuracy()})


@trainer.on(Events.EPOCH_COMPLETED)
def test():
    evaluator.run(test_loader)
    accuracy = evaluator.state.metrics["accuracy"]
    print(f"epoch {trainer.state.epoch}: loss {trainer.state.output:.3f}, accuracy {accuracy:.1%}")


trainer.run(train_loader, max_epochs=3)
print(trainer.ipu)
if evaluator.state.metrics["accuracy"] < 0.9:
    sys.exit("the model has not learnt")
