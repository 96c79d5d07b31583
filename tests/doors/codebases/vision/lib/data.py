import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset


def create_loader(count, batch_size, is_training):
    g = torch.Generator().manual_seed(count)
    y = torch.randint(0, 3, (count,), generator=g)
    x = torch.randn(count, 3, 6, 6, generator=g) + y.view(-1, 1, 1, 1)
    return DataLoader(TensorDataset(x, y), batch_size, shuffle=is_training, drop_last=is_training, pin_memory=True)


class Mixup:
    def __init__(self, alpha, smoothing, num_classes):
        self.alpha, self.smoothing, self.num_classes = alpha, smoothing, num_classes

    def _one_hot(self, target):
        off = self.smoothing / self.num_classes
        on = 1.0 - self.smoothing + off
        return torch.full((target.size(0), self.num_classes), off, device=target.device).scatter_(1, target.view(-1, 1), on)

    def __call__(self, x, target):
        lam = float(np.random.beta(self.alpha, self.alpha))
        x.mul_(lam).add_(x.flip(0).mul(1.0 - lam))
        return x, self._one_hot(target) * lam + self._one_hot(target.flip(0)) * (1.0 - lam)
