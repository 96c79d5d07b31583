"""Classify scikit-learn's handwritten digits in several processes, with DistributedDataParallel on GPUs.

torchrun --nproc-per-node 2 gpu.py
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from ignite_ipu import host_device, ipu_prepare, parallel_model


def main():
    cuda = host_device().type == "cuda"
    # Without a launcher, this process is the only one.
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")

    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    sampler = DistributedSampler(digits, world, rank, shuffle=True, drop_last=True)
    loader = DataLoader(digits, batch_size=32 // world, sampler=sampler, drop_last=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    model = parallel_model(DistributedDataParallel, model, device_ids=[device.index] if cuda else None)
    optimizer = ipu_prepare(torch.optim.Adam(model.parameters(), lr=0.003), model)

    for epoch in range(5):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()

        model.eval()
        counts = torch.zeros(2)
        with torch.no_grad():
            for x, y in loader:
                right = model(x.to(device)).argmax(dim=1).cpu() == y
                counts += torch.tensor([right.sum().item(), len(y)])
        counts = counts.to(device)
        dist.all_reduce(counts)
        accuracy = (counts[0] / counts[1]).item()
        if rank == 0:
            print(f"epoch {epoch + 1}: accuracy {accuracy:.1%} in {world} processes")

    dist.destroy_process_group()
    if accuracy < 0.9:
        sys.exit(f"the model has not learnt: accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
