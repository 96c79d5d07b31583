"""A variational autoencoder whose loop calls its methods instead of the model itself."""

import json

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 16)
        self.mean, self.log_variance = nn.Linear(16, 4), nn.Linear(16, 4)
        self.decoder = nn.Linear(4, 8)

    def encode(self, x):
        h = F.relu(self.hidden(x))
        return self.mean(h), self.log_variance(h)

    def decode(self, z):
        return self.decoder(z)

    def forward(self, x):
        return self.decode(self.encode(x)[0])


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
data = torch.randn(200, 8)
coder = Coder().to(device)
optimizer = torch.optim.Adam(coder.parameters(), lr=1e-2)
losses = []
for epoch in range(2):
    for (x,) in DataLoader(TensorDataset(data), batch_size=64):
        x = x.to(device)
        mean, log_variance = coder.encode(x)
        divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        loss = F.mse_loss(coder.decode(mean), x, reduction="sum") + divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

coder.eval()
with torch.no_grad():
    error = F.mse_loss(coder(data.to(device)).cpu(), data).item()
print("RESULT", json.dumps({"losses": losses, "error": error}))
