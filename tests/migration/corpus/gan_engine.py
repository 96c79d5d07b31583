"""The adversarial network again, as the process function of an Ignite engine."""

import json

import torch
from ignite.engine import Engine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
images = torch.tensor(load_digits().data, dtype=torch.float32) / 16.0
loader = DataLoader(TensorDataset(images[:1280]), batch_size=64, shuffle=True)

generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid()).to(device)
discriminator = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)).to(device)
bce = nn.BCEWithLogitsLoss()
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)


def step(engine, batch):
    (real,) = batch
    real = real.to(device)
    ones = torch.ones(len(real), 1, device=device)
    opt_d.zero_grad()
    fake = generator(torch.randn(len(real), 8, device=device))
    loss_d = bce(discriminator(real), ones) + bce(discriminator(fake.detach()), torch.zeros_like(ones))
    loss_d.backward()
    opt_d.step()
    opt_g.zero_grad()
    loss_g = bce(discriminator(fake), ones)
    loss_g.backward()
    opt_g.step()
    return {"g": loss_g.item(), "d": loss_d.item()}


trainer = Engine(step)
trainer.run(loader, max_epochs=2)
print("RESULT", json.dumps(trainer.state.output))
