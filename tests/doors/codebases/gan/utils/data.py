import math

import torch
from torch.utils.data import TensorDataset


def rings(count):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (count,), generator=generator)
    angles = torch.rand(count, generator=generator) * 2 * math.pi
    radius = 0.3 * (labels + 1)
    return TensorDataset(torch.stack([radius * angles.cos(), radius * angles.sin()], 1), labels)
