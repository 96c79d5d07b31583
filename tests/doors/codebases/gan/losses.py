import torch.nn as nn
import torch.nn.functional as F


class HingeLoss(nn.Module):
    def forward(self, prediction, real):
        return F.relu(1.0 - prediction).mean() if real else F.relu(1.0 + prediction).mean()
