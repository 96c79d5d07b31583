import torch
import torch.nn as nn
from torch.nn.utils import spectral_norm


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Linear") != -1 and hasattr(m, "weight"):
        m.weight.data.normal_(0.0, 0.2)
        m.bias.data.fill_(0)
    elif classname.find("BatchNorm") != -1:
        m.weight.data.normal_(1.0, 0.02)
        m.bias.data.fill_(0)


class Generator(nn.Module):
    def __init__(self, nz, classes=3, width=12):
        super().__init__()
        self.embed = nn.Embedding(classes, nz)
        self.main = nn.Sequential(
            nn.Linear(2 * nz, width), nn.BatchNorm1d(width), nn.ReLU(True), nn.Linear(width, width), nn.ReLU(True),
            nn.Linear(width, 2),
        )

    def forward(self, z, y):
        return torch.tanh(self.main(torch.cat([z, self.embed(y)], dim=1)))


class Discriminator(nn.Module):
    """Projection discriminator."""

    def __init__(self, classes=3, width=12):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(2, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2))
        self.out = nn.Linear(width, 1)
        self.embed = nn.Embedding(classes, width)

    def forward(self, x, y):
        h = self.features(x)
        return self.out(h).squeeze(1) + (h * self.embed(y)).sum(1)
