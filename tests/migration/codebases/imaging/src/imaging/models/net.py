import torch
from torch import nn

from .registry import register

__all__ = ["SmallNet"]


@register("small_net")
class SmallNet(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.head = nn.Linear(width, classes)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x):
        return self.head(self.stem(x * self.scale).mean(dim=(2, 3)))
