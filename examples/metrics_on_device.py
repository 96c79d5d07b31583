"""Accuracy and loss summed up on the device: a few bytes come back per call, and the values are Ignite's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from ignite.engine import Events
from ignite.metrics import Accuracy, Loss
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import create_ipu_averages_evaluator, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.handlers import IPUStats

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
loader = DataLoader(digits, batch_size=16)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), device_iterations=8)

on_host = create_ipu_evaluator(model, {"accuracy": Accuracy(), "loss": Loss(nn.CrossEntropyLoss())})
on_device = create_ipu_averages_evaluator(
    model,
    {
        "accuracy": lambda y_pred, y: (y_pred.argmax(1) == y).float(),
        "loss": lambda y_pred, y: F.cross_entropy(y_pred, y, reduction="none"),
    },
)
for evaluator in (on_host, on_device):
    IPUStats().attach(evaluator)


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate():
    host, device = (evaluator.run(loader).metrics for evaluator in (on_host, on_device))
    print(f"epoch {trainer.state.epoch}: accuracy {device['accuracy']:.1%}, loss {device['loss']:.4f}")
    assert abs(host["accuracy"] - device["accuracy"]) < 1e-6
    assert abs(host["loss"] - device["loss"]) < 1e-4


trainer.run(DataLoader(digits, batch_size=16, shuffle=True), max_epochs=5)
back = [evaluator.state.metrics["ipu/bytes_from_device"] for evaluator in (on_host, on_device)]
print(f"bytes of results in one evaluation: {back[0]:.0f} with predictions, {back[1]:.0f} without")
assert on_device.state.metrics["accuracy"] > 0.9
assert back[1] < back[0]
