"""Sharpness-aware minimisation by an optimizer class of two steps: weights are moved, and restored before the update."""

import json

import torch
from torch import nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        grad_norm = torch.norm(
            torch.stack([p.grad.norm(p=2) for g in self.param_groups for p in g["params"] if p.grad is not None]), p=2
        )
        for group in self.param_groups:
            scale = group["rho"] / (grad_norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
d = load_digits()
x, y = torch.tensor(d.data / 16).float(), torch.tensor(d.target)
loader = DataLoader(TensorDataset(x[:500], y[:500]), batch_size=100, shuffle=True)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
losses = []
for epoch in range(3):
    for xb, yb in loader:
        xb, yb = xb.to(device), yb.to(device)
        loss = nn.functional.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.first_step(zero_grad=True)
        nn.functional.cross_entropy(model(xb), yb).backward()
        optimizer.second_step(zero_grad=True)
        losses.append(loss.item())
print("RESULT", json.dumps({"losses": losses}))
