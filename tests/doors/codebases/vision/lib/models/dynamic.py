import torch
import torch.nn as nn

from .registry import register_model

__all__ = []


class EarlyExit(nn.Module):
    """Stops at the first head that is sure: no compiled program can."""

    def __init__(self, num_classes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(108, 108) for _ in range(3))
        self.heads = nn.ModuleList(nn.Linear(108, num_classes) for _ in range(3))

    def forward(self, x):
        x = x.flatten(1)
        for layer, head in zip(self.layers, self.heads):
            x = torch.relu(layer(x))
            out = head(x)
            if out.softmax(1).max() > 0.9:
                return out
        return out


@register_model
def early_exit(num_classes=10):
    return EarlyExit(num_classes)
