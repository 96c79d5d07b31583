"""Synthetic images whose classes differ by their brightest quarter."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def make_images(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % 4
    images = 0.3 * torch.randn(samples, 1, 8, 8, generator=generator)
    for index, label in enumerate(labels.tolist()):
        row, column = divmod(label, 2)
        images[index, 0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 1
    return TensorDataset(images, labels)


def build_loaders(config):
    train = DataLoader(
        make_images(config["samples"], 0), batch_size=config["batch_size"], shuffle=True, pin_memory=torch.cuda.is_available()
    )
    return train, DataLoader(make_images(24, 1), batch_size=config["batch_size"])
