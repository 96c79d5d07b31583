"""An optimizer that an IPU does not have."""

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
loader = DataLoader(TensorDataset(features[:1280], labels[:1280]), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss(), device=device)
trainer.run(loader, max_epochs=2)
print("RESULT", json.dumps({"loss": trainer.state.output}))
