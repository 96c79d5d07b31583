import torch
import torch.nn.functional as F
from torch import nn

from ..registry import LOSSES


@LOSSES.register_module
class CrossEntropyLoss(nn.Module):
    def __init__(self, loss_weight=1.0, ignore_index=-100):
        super().__init__()
        self.loss_weight, self.ignore_index = loss_weight, ignore_index

    def forward(self, pred, label):
        loss = F.cross_entropy(pred, label, reduction="none", ignore_index=self.ignore_index)
        return self.loss_weight * loss.mean()


@LOSSES.register_module
class DiceLoss(nn.Module):
    def __init__(self, loss_weight=1.0, smooth=1.0, ignore_index=255):
        super().__init__()
        self.loss_weight, self.smooth, self.ignore_index = loss_weight, smooth, ignore_index

    def forward(self, pred, label):
        num = pred.shape[1]
        valid = (label != self.ignore_index).unsqueeze(1).float()
        one_hot = F.one_hot(torch.clamp(label, 0, num - 1), num).permute(0, 3, 1, 2).float()
        prob = F.softmax(pred, dim=1)
        total = 0.0
        for i in range(num):
            p, t = (prob[:, i : i + 1] * valid).flatten(1), (one_hot[:, i : i + 1] * valid).flatten(1)
            total = total + (1 - (2 * (p * t).sum(1) + self.smooth) / (p.sum(1) + t.sum(1) + self.smooth)).mean()
        return self.loss_weight * total / num
