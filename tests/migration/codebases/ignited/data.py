import ignite.distributed as idist
import torch
from torch.utils.data import TensorDataset


def make(count, seed):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    x = torch.randn(count, 6, generator=generator)
    x[torch.arange(count), y] += 2
    return TensorDataset(x, y)


def get_dataflow(config):
    train = idist.auto_dataloader(make(60, 0), batch_size=config.batch_size, shuffle=True)
    return train, idist.auto_dataloader(make(20, 1), batch_size=config.batch_size)
