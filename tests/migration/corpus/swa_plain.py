"""Stochastic weight averaging at the ends of the later epochs."""

import json

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
digits = load_digits()
features = torch.tensor(digits.data, dtype=torch.float32) / 16.0
labels = torch.tensor(digits.target)
loader = DataLoader(TensorDataset(features[:1280], labels[:1280]), batch_size=64, shuffle=True, drop_last=True)

model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).to(device)
swa_model = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
swa_scheduler = SWALR(optimizer, swa_lr=0.05)
loss_fn = nn.CrossEntropyLoss()

for epoch in range(4):
    model.train()
    for input, target in loader:
        input, target = input.to(device), target.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(input), target)
        loss.backward()
        optimizer.step()
    if epoch >= 2:
        swa_model.update_parameters(model)
        swa_scheduler.step()

swa_model.eval()
with torch.no_grad():
    predictions = swa_model(features[1280:].to(device)).argmax(1).cpu()
accuracy = (predictions == labels[1280:]).float().mean().item()
print("RESULT", json.dumps({"accuracy": accuracy, "averaged": int(swa_model.n_averaged)}))
