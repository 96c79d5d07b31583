"""An autoencoder: the target of the loss is the input."""

import json

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
        self.decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())

    def forward(self, x):
        return self.decoder(self.encoder(x))


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = torch.tensor(load_digits().data, dtype=torch.float32) / 16.0
    loader = DataLoader(TensorDataset(images[:1728]), batch_size=64, shuffle=True)

    model = AutoEncoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    distance = nn.MSELoss()
    for epoch in range(3):
        for (img,) in loader:
            img = img.to(device)
            optimizer.zero_grad()
            loss = distance(model(img), img)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.4f}")
    print("RESULT", json.dumps({"loss": loss.item()}))


if __name__ == "__main__":
    main()
