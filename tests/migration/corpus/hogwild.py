"""Hogwild: two processes train one model in shared memory, without locks."""

import json

import torch
import torch.multiprocessing as mp
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(rank, model, dataset):
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    loader = DataLoader(dataset, batch_size=64, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model.train()
    for data, target in loader:
        optimizer.zero_grad()
        output = model(data)
        loss = nn.functional.cross_entropy(output, target)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    features = torch.tensor(digits.data, dtype=torch.float32) / 16.0
    labels = torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    model.share_memory()  # gradients are allocated lazily, so they are not shared here
    context = mp.get_context("fork")
    processes = []
    for rank in range(2):
        process = context.Process(target=train, args=(rank, model, TensorDataset(features[:1280], labels[:1280])))
        process.start()
        processes.append(process)
    for process in processes:
        process.join()
    with torch.no_grad():
        accuracy = (model(features[1280:]).argmax(1) == labels[1280:]).float().mean().item()
    print("RESULT", json.dumps({"trained": accuracy > 0.1, "exit_codes": [process.exitcode for process in processes]}))
