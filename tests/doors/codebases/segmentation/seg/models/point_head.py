"""A head that this configuration does not use."""
from torch import nn

from ..registry import HEADS


@HEADS.register_module
class PointHead(nn.Module):
    def __init__(self, channels, num_classes):
        super().__init__()
        self.fc = nn.Linear(channels, num_classes)

    def forward(self, feats):
        x = feats[0]
        uncertain = x.var(dim=1) > 0.5
        if uncertain.sum().item() > 10:
            x = x[:, :, uncertain.any(0)]
        return self.fc(x.flatten(2).transpose(1, 2))
