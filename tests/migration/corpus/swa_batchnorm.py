"""Averaged weights whose batch statistics are computed after training, in a loop with accumulated gradients."""

import json

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
features, labels = torch.randn(200, 8), torch.randint(3, (200,))
loader = DataLoader(TensorDataset(features, labels), batch_size=40)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)).to(device)
averaged = AveragedModel(model)
groups = [{"params": part.parameters(), "lr": lr} for part, lr in ((model[:2], 0.1), (model[2:], 0.05))]
optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
losses = []
for epoch in range(3):
    model.train()
    for step, (x, y) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device)) / 5
        loss.backward()
        if step % 5 == 0:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    averaged.update_parameters(model)
update_bn(loader, averaged, device)
averaged.eval()
with torch.no_grad():
    total = averaged(features.to(device)).abs().sum().item()
print("RESULT", json.dumps({"losses": [loss.item() for loss in losses], "total": total}))
