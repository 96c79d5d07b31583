"""Train a generative adversarial network on points of a ring, on a GPU."""

from __future__ import annotations

import math
import sys

import torch
from torch import nn
from torch.optim import Adam

BATCH, NOISE, UPDATES, BETAS = 128, 8, 200, (0.5, 0.999)

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


def ring(count):
    """Return points at a distance of about 1 from the origin."""
    angles = 2 * math.pi * torch.rand(count, 1)
    return torch.cat([angles.cos(), angles.sin()], dim=1) + 0.05 * torch.randn(count, 2)


generator = nn.Sequential(nn.Linear(NOISE, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
discriminator = nn.Sequential(
    nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
)
generator, discriminator = generator.to(device), discriminator.to(device)
optimizer_g = Adam(generator.parameters(), 3e-3, BETAS)
optimizer_d = Adam(discriminator.parameters(), 6e-3, BETAS)
criterion = nn.BCEWithLogitsLoss()
real_labels, fake_labels = torch.ones(BATCH, 1, device=device), torch.zeros(BATCH, 1, device=device)

for update in range(UPDATES):
    real = ring(BATCH).to(device)
    fake = generator(torch.randn(BATCH, NOISE).to(device))

    optimizer_d.zero_grad()
    loss_d = criterion(discriminator(real), real_labels) + criterion(discriminator(fake.detach()), fake_labels)
    loss_d.backward()
    optimizer_d.step()

    optimizer_g.zero_grad()
    loss_g = criterion(discriminator(fake), real_labels)
    loss_g.backward()
    optimizer_g.step()

    if (update + 1) % 100 == 0:
        print(f"update {update + 1}: discriminator {loss_d.item():.3f}, generator {loss_g.item():.3f}")

generator.eval()
with torch.no_grad():
    points = generator(torch.randn(1000, NOISE).to(device)).cpu()
radius = points.norm(dim=1)
print(f"radius of generated points: {radius.mean():.2f} +- {radius.std():.2f}")
if abs(radius.mean() - 1) > 0.15 or radius.std() > 0.25 or points.mean(dim=0).norm() > 0.4:
    sys.exit("the generator has not learnt the ring")
