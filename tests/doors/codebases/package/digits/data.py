import torch


def batches(seed, count=4, size=6):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(size, 5, generator=generator)
        yield x, (x[:, :2].sum(1) > 0).long()
