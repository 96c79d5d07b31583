"""LBFGS fits a sine in the manner of the time sequence example, through a closure."""

import json

import torch
from torch import nn, optim

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x = torch.linspace(0, 3, 60, device=device).unsqueeze(1)
y = torch.sin(2 * x)

seq = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
criterion = nn.MSELoss()
optimizer = optim.LBFGS(seq.parameters(), lr=0.8)

for i in range(5):

    def closure():
        optimizer.zero_grad()
        out = seq(x)
        loss = criterion(out, y)
        loss.backward()
        return loss

    loss = optimizer.step(closure)

print("RESULT", json.dumps({"loss": loss.item()}))
