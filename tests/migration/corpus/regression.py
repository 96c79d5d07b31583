"""Regression of a polynomial, with the network's last axis taken off in the loss."""

import json

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")

x = torch.linspace(-1, 1, 512)
features = torch.stack([x, x**2, x**3], dim=1)
targets = 2.0 * x**3 - x + 0.5
loader = DataLoader(TensorDataset(features, targets), batch_size=32, shuffle=True)

model = torch.nn.Linear(3, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)

for epoch in range(10):
    for features, target in loader:
        features, target = features.to(device), target.to(device)
        optimizer.zero_grad()
        prediction = model(features)
        loss = F.smooth_l1_loss(prediction.squeeze(1), target)
        loss.backward()
        optimizer.step()
    scheduler.step()

weights = model.weight.detach().flatten().tolist()
print("RESULT", json.dumps({"loss": loss.item(), "weights": weights, "bias": model.bias.item()}))
