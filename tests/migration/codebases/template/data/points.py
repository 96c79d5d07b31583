import os

import torch
from torch.utils.data import DataLoader, Dataset

CENTRES = os.path.join(os.path.dirname(__file__), "centres.txt")


class Points(Dataset):
    def __init__(self, count):
        with open(CENTRES) as file:
            centres = torch.tensor([[float(word) for word in line.split()] for line in file])
        generator = torch.Generator().manual_seed(0)
        self.targets = torch.arange(count) % len(centres)
        self.points = centres[self.targets] + 0.7 * torch.randn(count, centres.shape[1], generator=generator)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index], self.targets[index]


def get_loader(count, batch_size):
    return DataLoader(Points(count), batch_size=batch_size, shuffle=True)
