"""A convolutional variational autoencoder without noise, whose KL weight grows with the epoch."""
import argparse
import json

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--no-cuda", action="store_true")
args = parser.parse_args([])
use_cuda = not args.no_cuda and torch.cuda.is_available()
device = torch.device("cuda" if use_cuda else "cpu")
torch.manual_seed(1)


class VAE(nn.Module):
    def __init__(self, latent=4):
        super(VAE, self).__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten())
        self.mu = nn.Linear(128, latent)
        self.logvar = nn.Linear(128, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 128), nn.ReLU(), nn.Unflatten(1, (8, 4, 4)), nn.ConvTranspose2d(8, 1, 2, stride=2))

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + 0.1 * std

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        return torch.sigmoid(self.decoder(self.reparameterize(mu, logvar))), mu, logvar


def main():
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    train_loader = DataLoader(TensorDataset(images[:1280]), batch_size=args.batch_size, shuffle=True)
    model = VAE().to(device)
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    history = []
    for epoch in range(1, args.epochs + 1):
        model.train()
        beta = min(1.0, epoch / args.epochs)
        train_loss = 0
        for (data,) in train_loader:
            data = data.to(device)
            optimizer.zero_grad()
            recon, mu, logvar = model(data)
            bce = F.binary_cross_entropy(recon, data, reduction="mean")
            kld = -0.5 * torch.mean(1 + logvar - mu.pow(2) - logvar.exp())
            loss = bce + beta * kld
            loss.backward()
            train_loss += loss.item()
            optimizer.step()
        history.append(train_loss / len(train_loader))
    print("RESULT", json.dumps({"loss": history}))


if __name__ == "__main__":
    main()
