"""Ignite accumulates gradients over four batches per update."""

import json

import torch
from ignite.engine import create_supervised_trainer
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
digits = load_digits()
features = torch.tensor(digits.data, dtype=torch.float32) / 16.0
labels = torch.tensor(digits.target)
loader = DataLoader(TensorDataset(features[:1280], labels[:1280]), batch_size=16, shuffle=False)

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = create_supervised_trainer(
    model,
    optimizer,
    nn.CrossEntropyLoss(),
    device=device,
    gradient_accumulation_steps=4,
    output_transform=lambda x, y, y_pred, loss: {"loss": loss.item(), "rows": len(y)},
)
trainer.run(loader, max_epochs=2)
weights = sum(parameter.abs().sum().item() for parameter in model.parameters())
print("RESULT", json.dumps({"weights": weights}))
