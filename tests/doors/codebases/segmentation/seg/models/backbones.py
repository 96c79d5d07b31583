import torch
from torch import nn

from ..registry import BACKBONES


def conv_module(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


@BACKBONES.register_module
class UNet(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.enc = nn.ModuleList([conv_module(2, base), conv_module(base, 2 * base)])
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ConvTranspose2d(2 * base, base, 2, stride=2)
        self.dec = conv_module(2 * base, base)

    def forward(self, x):
        outs = []
        for i, stage in enumerate(self.enc):
            x = stage(x if i == 0 else self.pool(x))
            outs.append(x)
        return [self.dec(torch.cat([outs[0], self.up(outs[1])], dim=1)), outs[1]]
