"""A generative adversarial network: generator and discriminator step in turn."""

import json

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
images = torch.tensor(load_digits().data, dtype=torch.float32) / 16.0
dataloader = DataLoader(TensorDataset(images[:1280]), batch_size=64, shuffle=True)
nz = 8

netG = nn.Sequential(nn.Linear(nz, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid()).to(device)
netD = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1), nn.Sigmoid()).to(device)
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))

for epoch in range(2):
    for (real,) in dataloader:
        # Update D: maximize log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        real = real.to(device)
        label = torch.ones(real.size(0), 1, device=device)
        output = netD(real)
        errD_real = criterion(output, label)
        errD_real.backward()
        fake = netG(torch.randn(real.size(0), nz, device=device))
        output = netD(fake.detach())
        errD_fake = criterion(output, torch.zeros_like(label))
        errD_fake.backward()
        optimizerD.step()

        # Update G: maximize log(D(G(z)))
        netG.zero_grad()
        output = netD(fake)
        errG = criterion(output, label)
        errG.backward()
        optimizerG.step()

print("RESULT", json.dumps({"generator": errG.item(), "discriminator": (errD_real + errD_fake).item()}))
