"""The same training three times: in float32, with products in half precision, and with a half model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from ignite.metrics import Accuracy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import create_ipu_evaluator, create_ipu_trainer

images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))


def half_batch(batch, device, non_blocking):
    return batch[0].half(), batch[1]


def accuracy(convert, shared, **training):
    torch.manual_seed(0)
    model = convert(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    trainer = create_ipu_trainer(
        model, optimizer, lambda y_pred, y: F.cross_entropy(y_pred.float(), y), **shared, **training
    )
    evaluator = create_ipu_evaluator(model, {"accuracy": Accuracy()}, **shared)
    trainer.run(DataLoader(digits, batch_size=16, shuffle=True), max_epochs=5)
    found = evaluator.run(DataLoader(digits, batch_size=64)).metrics["accuracy"]
    trainer.ipu.close()
    return found


found = {
    "float32": accuracy(lambda model: model, {}),
    "products in half precision": accuracy(lambda model: model, {"amp_mode": "amp"}, loss_scaling=128.0),
    "a half model": accuracy(nn.Module.half, {"prepare_batch": half_batch}, loss_scaling=128.0),
}
for name, value in found.items():
    print(f"{value:.1%}  {name}")
assert min(found.values()) > 0.95
assert max(found.values()) - min(found.values()) < 0.03
