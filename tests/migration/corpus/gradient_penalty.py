"""A smoothness penalty on the gradient of the output with respect to the input."""

import json

import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for step in range(40):
    x = torch.randn(32, 2, device=device, requires_grad=True)
    y = x.prod(dim=1, keepdim=True).detach()
    optimizer.zero_grad()
    prediction = model(x)
    (slope,) = torch.autograd.grad(prediction.sum(), x, create_graph=True)
    loss = nn.functional.mse_loss(prediction, y) + 0.01 * slope.pow(2).mean()
    loss.backward()
    optimizer.step()

print("RESULT", json.dumps({"loss": loss.item()}))
